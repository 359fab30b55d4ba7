// Names each cell of a wide table by its column. On a narrow screen site.css shows such a row as a
// list of its cells, with these names, and short cells share a line.
for (const table of document.querySelectorAll('main table')) {
  const heads = [...table.querySelectorAll('thead th')].map((head) => head.textContent);
  if (heads.length < 3) continue;
  table.classList.add('wide');
  for (const row of table.tBodies[0]?.rows ?? []) {
    [...row.cells].forEach((cell, column) => {
      cell.dataset.column = heads[column];
      const isShort = heads[column].length + cell.textContent.length < 25;
      cell.classList.toggle('short', column > 0 && isShort);
    });
  }
}

// Keeps each option of a synopsis on one line.
for (const code of document.querySelectorAll('pre > code')) {
  if (!/^LOCK\.[A-Z]+ .*\[.*\n?$/.test(code.textContent)) continue;
  const options = /(\[(?:[^[\]]|\[(?:[^[\]]|\[[^[\]]*\])*\])*\])/;
  code.replaceChildren(...code.textContent.split(options).map((part) => {
    if (!options.test(part) || part.length > 34) return part;
    const option = document.createElement('span');
    option.className = 'option';
    option.textContent = part;
    return option;
  }));
}
