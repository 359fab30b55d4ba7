// Names each cell of a wide table by its column. On a narrow screen site.css shows such a row as a
// list of its cells, with these names.
for (const table of document.querySelectorAll('main table')) {
  const heads = [...table.querySelectorAll('thead th')].map((head) => head.textContent);
  if (heads.length < 4) continue;
  table.classList.add('wide');
  for (const row of table.tBodies[0]?.rows ?? []) {
    [...row.cells].forEach((cell, column) => { cell.dataset.column = heads[column]; });
  }
}
