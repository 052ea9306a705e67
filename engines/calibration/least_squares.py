"""Least squares without negative coefficients, by which all step times are fitted (Lawson and Hanson)."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def non_negative(rows: Floats, values: Floats) -> Floats:
    """Return the least-squares solution without negative coefficients: the most negative is left out, again and again.

    A coefficient that was left out comes back when the error would fall with it.
    """
    width = rows.shape[1]
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    scaled = rows / scale
    kept: list[int] = []
    solution = np.zeros(width)
    for _ in range(3 * width):
        pull = scaled.T @ (values - scaled @ solution)
        pull[kept] = 0
        best = int(np.argmax(pull))
        if pull[best] <= 1e-9 * max(float(np.linalg.norm(values)), 1e-30):
            break
        kept.append(best)
        while True:
            trial = np.zeros(width)
            trial[kept] = np.linalg.lstsq(scaled[:, kept], values, rcond=None)[0]
            below = [k for k in kept if trial[k] <= 0]
            if not below:
                break
            # Move as far as all stay above zero (Lawson and Hanson).
            step = min(solution[k] / (solution[k] - trial[k]) for k in below)
            solution = solution + step * (trial - solution)
            kept = [k for k in kept if solution[k] > 1e-12]
            if not kept:
                break
        if kept:
            solution = trial
    scaled_back: Floats = solution / scale
    return scaled_back
