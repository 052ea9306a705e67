// Filters of the results page: by paper and by verdict.  Without scripts all rows are shown.
document.addEventListener("DOMContentLoaded", () => {
  const parts = [...document.querySelectorAll(".result-paper, .result, .result-panels")];
  if (!parts.length) return;
  const of = (part, kind) => [...part.classList].find((name) => name.startsWith(`${kind}-`)) ?? "";
  const rows = parts.filter((part) => part.classList.contains("result"));
  const bar = document.createElement("p");
  bar.className = "result-filters";
  const [paper, verdict] = ["paper", "verdict"].map((kind) => {
    const select = document.createElement("select");
    select.ariaLabel = kind;
    const found = [...new Set(rows.map((row) => of(row, kind)))];
    const words = (name) => name.slice(kind.length + 1).replaceAll("-", " ");
    select.append(new Option(`every ${kind}`, ""), ...found.map((name) => new Option(words(name), name)));
    select.addEventListener("change", apply);
    bar.append(select);
    return select;
  });
  function apply() {
    const matches = (part, select, kind) => !select.value || of(part, kind) === select.value;
    for (const row of rows) row.hidden = !matches(row, paper, "paper") || !matches(row, verdict, "verdict");
    for (const part of parts.filter((each) => !rows.includes(each))) {
      const shown = rows.some((row) => !row.hidden && of(row, "paper") === of(part, "paper"));
      const heading = part.classList.contains("result-paper");
      part.hidden = !matches(part, paper, "paper") || (verdict.value !== "" && !(heading && shown));
    }
  }
  parts[0].before(bar);
});
