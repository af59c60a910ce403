// Draws a dashboard of Grafana with the panel components of @grafana/ui.
//
// The server of draw.mjs gives the dashboard as the project ships it (/dashboard.json), the moments
// to draw (/settings.json), and the answers of Prometheus (/api/v1/query_range). When everything is
// drawn, `window.drawn` holds what each panel shows.
import '@fontsource/inter/400.css'; // Grafana's font; without it, axes are measured in another one
import '@fontsource/inter/500.css';
import { createRoot } from 'react-dom/client';
import { createTheme, dateTime, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';

import { framesOf } from './frames.js';
import { panelSvg } from './svg.js';

const CELL_PX = 30; // height of a cell of Grafana's grid
const GAP_PX = 8; // between two cells
const WIDTH_PX = 1280; // of the dashboard
const COLUMNS = 24;

function place({ x, y, w, h }) {
  const column = (WIDTH_PX + GAP_PX) / COLUMNS;
  return {
    position: 'absolute',
    left: x * column,
    top: y * (CELL_PX + GAP_PX),
    width: w * column - GAP_PX,
    height: h * (CELL_PX + GAP_PX) - GAP_PX,
  };
}

function Panel({ panel, frames, settings, theme }) {
  const box = place(panel.gridPos);
  const range = { from: dateTime(settings.from_ms), to: dateTime(settings.to_ms) };
  const timeRange = { ...range, raw: range };
  const options = panel.options ?? {};
  const empty = frames.length === 0;
  return (
    <div style={box} className="panel" data-title={panel.title} data-id={panel.id}>
      <PanelChrome title={panel.title} width={box.width} height={box.height}>
        {(width, height) =>
          empty ? (
            <span>No data</span>
          ) : (
            <TimeSeries
              frames={frames}
              structureRev={1}
              timeRange={timeRange}
              timeZone="utc"
              width={width}
              height={height}
              legend={options.legend}
              options={options}
              theme={theme}
            />
          )
        }
      </PanelChrome>
    </div>
  );
}

function Row({ panel }) {
  return (
    <h4 style={{ ...place(panel.gridPos), lineHeight: `${CELL_PX}px`, margin: 0 }}>{panel.title}</h4>
  );
}

function Dashboard({ panels, settings, theme }) {
  const rows = Math.max(...panels.map(({ panel: { gridPos } }) => gridPos.y + gridPos.h));
  const size = { position: 'relative', width: WIDTH_PX, height: rows * (CELL_PX + GAP_PX) };
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div id="dashboard" style={{ ...size, background: theme.colors.background.canvas }}>
        {panels.map(({ panel, frames }) =>
          panel.type === 'row' ? (
            <Row key={panel.id} panel={panel} />
          ) : (
            <Panel key={panel.id} {...{ panel, frames, settings, theme }} />
          )
        )}
      </div>
    </ThemeContext.Provider>
  );
}

async function json(path) {
  const answer = await fetch(path);
  if (!answer.ok) {
    throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  }
  return answer.json();
}

// Number of pixels of a canvas that have a colour; axes, grid and texts of Grafana are grey.
function colouredPixels(canvas) {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    const [r, g, b, alpha] = [data[i], data[i + 1], data[i + 2], data[i + 3]];
    if (alpha > 60 && Math.max(r, g, b) - Math.min(r, g, b) > 50) {
      found += 1;
    }
  }
  return found;
}

function shown(element, frames) {
  const canvas = element.querySelector('canvas');
  return {
    title: element.dataset.title,
    legend: [...element.querySelectorAll('[class*="LegendLabel"]')].map((one) => one.textContent),
    series: frames.map(({ fields: [, value] }) => ({
      name: value.config.displayNameFromDS,
      colour: value.config.color?.fixedColor ?? '',
      points: value.values.filter(Number.isFinite).length,
    })),
    coloured: canvas ? colouredPixels(canvas) : 0,
  };
}

// Waits until every panel with series has drawn its canvas and two frames have passed.
async function settled(panels) {
  const wanted = panels.filter(({ frames }) => frames.length > 0).length;
  const frame = () => new Promise((go) => requestAnimationFrame(go));
  while (document.querySelectorAll('.panel .uplot canvas').length < wanted) {
    await frame();
  }
  await frame();
  await frame();
}

async function main() {
  const [dashboard, settings] = await Promise.all([json('/dashboard.json'), json('/settings.json')]);
  const theme = createTheme({ colors: { mode: settings.theme } });
  const panels = [];
  for (const panel of dashboard.panels) {
    const frames = panel.type === 'row' ? [] : await framesOf(panel, dashboard, settings, theme, json);
    panels.push({ panel, frames });
  }
  await Promise.all(['400', '500'].map((weight) => document.fonts.load(`${weight} 12px Inter`)));
  createRoot(document.getElementById('root')).render(
    <Dashboard panels={panels} settings={settings} theme={theme} />
  );
  await settled(panels);
  window.panelSvg = (title) => panelSvg(document.querySelector(`[data-title="${CSS.escape(title)}"]`));
  return [...document.querySelectorAll('.panel')].map((element) => {
    const number = Number(element.dataset.id); // a row may have the title of a panel
    return shown(element, panels.find(({ panel }) => panel.id === number).frames);
  });
}

main().then(
  (drawn) => {
    window.drawn = { panels: drawn };
  },
  (error) => {
    window.drawn = { error: String(error.stack ?? error) };
  }
);
