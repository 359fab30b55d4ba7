// Draws the Mermaid blocks of a page. Pages without one don't load Mermaid.
(() => {
  const blocks = document.querySelectorAll('code.language-mermaid');
  if (blocks.length === 0) return;

  const isDark = () => /\b(ayu|coal|navy)\b/.test(document.documentElement.className);
  const wasDark = isDark();

  for (const block of blocks) {
    const diagram = document.createElement('pre');
    diagram.className = 'mermaid';
    diagram.textContent = block.textContent;
    block.closest('pre').replaceWith(diagram);
  }
  const script = document.createElement('script');
  script.src = `${path_to_root}mermaid.tiny.js`;
  script.addEventListener('load', () => {
    // On a phone a diagram keeps its size, so that its words stay readable, and scrolls.
    const size = { useMaxWidth: window.innerWidth > 600 };
    const theme = wasDark ? 'dark' : 'default';
    mermaid.initialize({ startOnLoad: false, theme, sequence: size, flowchart: size, state: size });
    mermaid.run();
  });
  document.body.append(script);

  // Mermaid can't change the colours of a drawn diagram.
  new MutationObserver(() => { if (isDark() !== wasDark) location.reload(); })
    .observe(document.documentElement, { attributeFilter: ['class'] });
})();
