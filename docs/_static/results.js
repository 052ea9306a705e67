// Filters of the results page: by paper and by verdict.  Without scripts all rows are shown.
document.addEventListener("DOMContentLoaded", () => {
  const rows = [...document.querySelectorAll(".result, .result-paper, .result-panels")];
  if (!rows.length) return;
  const classOf = (row, kind) => [...row.classList].find((name) => name.startsWith(kind + "-"));
  const filters = ["paper", "verdict"].map((kind) => {
    const select = document.createElement("select");
    select.ariaLabel = kind;
    const found = [...new Set(rows.map((row) => classOf(row, kind)).filter(Boolean))];
    select.append(new Option("every " + kind, ""), ...found.map((name) => new Option(
      name.slice(kind.length + 1).replaceAll("-", " "), name)));
    select.addEventListener("change", apply);
    return [kind, select];
  });
  function apply() {
    for (const row of rows) {
      row.hidden = filters.some(([kind, select]) =>
        select.value && (classOf(row, kind) || (kind === "verdict" && !row.classList.contains("result") ? "" : kind)) !== select.value);
    }
  }
  const bar = document.createElement("p");
  bar.className = "result-filters";
  bar.append(...filters.map(([, select]) => select));
  rows[0].before(bar);
});
