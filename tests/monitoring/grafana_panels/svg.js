// Writes a panel as SVG: what its canvas recorded (recorder.js), and the texts and boxes around it.
const FONT = 'Inter, Helvetica, Arial, sans-serif';
const round = (value) => Math.round(value * 10) / 10;
const visible = (colour) => colour !== 'transparent' && !/^rgba\(.*, 0\)$/.test(colour);

function canvasParts(canvas, origin) {
  const at = canvas.getBoundingClientRect();
  const scale = round(at.width / canvas.width);
  const known = [];
  const within = (text, clip) => {
    if (!known.includes(clip)) {
      known.push(clip);
    }
    return `<g clip-path="url(#c${known.indexOf(clip)})">${text}</g>`;
  };
  const parts = window.recordedParts(canvas).map(({ clips, text }) => clips.reduceRight(within, text));
  const defs = known.map((d, i) => `<clipPath id="c${i}"><path d="${d}"/></clipPath>`).join('');
  const move = `translate(${round(at.x - origin.x)} ${round(at.y - origin.y)}) scale(${scale})`;
  return `<defs>${defs}</defs><g transform="${move}">${parts.join('')}</g>`;
}

function boxPart(element, origin) {
  const style = getComputedStyle(element);
  const border = parseFloat(style.borderTopWidth) > 0 && style.borderTopStyle !== 'none';
  const fill = visible(style.backgroundColor) ? style.backgroundColor : 'none';
  const stroke = border && visible(style.borderTopColor) ? style.borderTopColor : 'none';
  const { x, y, width, height } = element.getBoundingClientRect();
  if ((fill === 'none' && stroke === 'none') || width < 1 || height < 1) {
    return '';
  }
  return (
    `<rect x="${round(x - origin.x)}" y="${round(y - origin.y)}" width="${round(width)}" ` +
    `height="${round(height)}" rx="${parseFloat(style.borderRadius) || 0}" fill="${fill}" stroke="${stroke}"/>`
  );
}

function textPart(node, origin) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const { x, y, width, height } = range.getBoundingClientRect();
  const style = getComputedStyle(node.parentElement);
  if (width < 1 || style.visibility === 'hidden') {
    return '';
  }
  return (
    `<text x="${round(x - origin.x)}" y="${round(y - origin.y + height / 2)}" ` +
    `dominant-baseline="central" textLength="${round(width)}" font-size="${parseFloat(style.fontSize)}" ` +
    `font-weight="${style.fontWeight}" fill="${style.color}">${window.escapeXml(node.data.trim())}</text>`
  );
}

// An SVG file of a panel.
export function panelSvg(panel) {
  const origin = panel.getBoundingClientRect();
  const parts = [];
  const walker = document.createTreeWalker(panel, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) {
      parts.push(node.data.trim() ? textPart(node, origin) : '');
    } else if (node instanceof HTMLCanvasElement) {
      parts.push(canvasParts(node, origin));
    } else if (node instanceof HTMLElement && !node.closest('.u-over, .u-cursor')) {
      parts.push(boxPart(node, origin));
    }
  }
  const [width, height] = [round(origin.width), round(origin.height)];
  const title = window.escapeXml(panel.dataset.title);
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" ` +
    `height="${height}" role="img" aria-label="${title}" font-family="${FONT}">\n` +
    `${parts.filter(Boolean).join('\n')}\n</svg>\n`
  );
}
