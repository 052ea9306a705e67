"""What is done: the simulator, its workloads and reports, and the engines that apply decisions."""
