// usage.js: njs has one instance of these for each request.
var start = '-', tail = '';
function filter(r, data, flags) {
    if (data.length && start == '-') { start = r.variables.request_time; }
    tail = (tail + data.toString()).slice(-4096);
    r.sendBuffer(data, flags);
}
function number(name) { var m = tail.match(new RegExp('"' + name + '": ?([0-9]+)')); return m ? m[1] : '-'; }
function prompt(r) { return number('prompt_tokens'); }
function completion(r) { return number('completion_tokens'); }
function first(r) { return start; }
export default { filter, prompt, completion, first };
