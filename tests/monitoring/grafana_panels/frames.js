// From the targets of a panel to the data frames that Grafana's components draw.
import { applyFieldOverrides, FieldConfigOptionsRegistry, FieldType, toDataFrame } from '@grafana/data';

const KNOWN = ['unit', 'min', 'max', 'decimals', 'color', 'displayName', 'noValue'];
const CUSTOM = [
  'drawStyle',
  'lineInterpolation',
  'lineWidth',
  'fillOpacity',
  'showPoints',
  'spanNulls',
  'axisPlacement',
  'axisSoftMin',
  'axisGridShow',
  'scaleDistribution',
];
// What the time series panel of Grafana uses where a dashboard says nothing.
const DEFAULTS = {
  color: { mode: 'palette-classic' },
  custom: { drawStyle: 'line', lineInterpolation: 'linear', spanNulls: false, axisPlacement: 'auto' },
};

const property = (id, isCustom) => ({
  id: isCustom ? `custom.${id}` : id,
  path: id,
  name: id,
  isCustom,
  process: (value) => value,
  shouldApply: () => true,
  settings: {},
});
const registry = new FieldConfigOptionsRegistry(() => [
  ...KNOWN.map((id) => property(id, false)),
  ...CUSTOM.map((id) => property(id, true)),
]);

// Fails where the dashboard uses something that this page would leave out in silence.
function check(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const { custom = {}, ...plain } = defaults;
  const used = [
    ...Object.keys(plain).map((id) => [id, KNOWN]),
    ...Object.keys(custom).map((id) => [id, CUSTOM]),
    ...overrides.flatMap((one) => one.properties.map(({ id }) => [id, KNOWN])),
  ];
  for (const [id, known] of used) {
    if (!known.includes(id)) {
      throw new Error(`panel ${panel.title}: the page does not know the setting ${id}`);
    }
  }
  if (panel.type !== 'timeseries' || panel.transformations.length > 0) {
    throw new Error(`panel ${panel.title}: the page draws time series without transformations`);
  }
}

// The expression that Grafana sends when everything is chosen in all variables.
function expression(target, dashboard, settings) {
  let expr = target.expr.replaceAll('$__rate_interval', settings.rate_interval);
  for (const variable of dashboard.templating.list) {
    if (variable.allValue) {
      expr = expr.replaceAll(`$${variable.name}`, variable.allValue);
    }
  }
  return expr;
}

// Grafana's panel draws nothing where a value is no finite number, too.
const finite = (value) => (Number.isFinite(value) ? value : null);

function frameOf(one, target, settings) {
  const name = target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, key) => one.metric[key] ?? '');
  const interval = settings.step_s * 1000;
  return toDataFrame({
    refId: target.refId,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        values: one.values.map(([moment]) => moment * 1000),
        config: { interval },
      },
      {
        name: 'Value',
        type: FieldType.number,
        values: one.values.map(([, text]) => finite(Number(text))),
        labels: one.metric,
        config: { displayNameFromDS: name.trim() },
      },
    ],
  });
}

// The frames of a panel, with its field configuration applied by @grafana/data.
export async function framesOf(panel, dashboard, settings, theme, json) {
  check(panel);
  const data = [];
  for (const target of panel.targets) {
    const query = new URLSearchParams({
      query: expression(target, dashboard, settings),
      start: settings.from_ms / 1000,
      end: settings.to_ms / 1000,
      step: settings.step_s,
    });
    const answer = await json(`/api/v1/query_range?${query}`);
    data.push(...answer.data.result.map((one) => frameOf(one, target, settings)));
  }
  const { defaults, overrides } = panel.fieldConfig;
  const merged = {
    ...DEFAULTS,
    ...defaults,
    custom: { ...DEFAULTS.custom, ...defaults.custom },
  };
  return applyFieldOverrides({
    data,
    fieldConfig: { defaults: merged, overrides },
    fieldConfigRegistry: registry,
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
}
