// Which view draws which address. A view returns {title, body, live, keys}; `live` is polled while
// the view is open: it returns the milliseconds until the next call, null to stop, or "again" to
// draw the view anew.

import { codesView } from "./codes.js";
import { frameOf, specView, tabsOf } from "./item.js";
import { mapView } from "./map.js";
import { overviewView } from "./overview.js";
import { packsView, packView } from "./packs.js";
import { planView } from "./plan.js";
import { rowsView, rowView } from "./rows.js";
import { sampleView } from "./sample.js";
import { samplesView } from "./samples.js";
import { searchView } from "./search.js";
import { rejectedView, unitsView, unitView } from "./units.js";

const VIEWS = {
  overview: overviewView,
  spec: specView,
  units: unitsView,
  unit: unitView,
  rejected: rejectedView,
  samples: samplesView,
  sample: sampleView,
  rows: rowsView,
  row: rowView,
  packs: packsView,
  pack: packView,
  codes: codesView,
};
const UNDER = { sample: "samples", row: "rows", pack: "packs", unit: "units" };

export async function open(route, ask) {
  if (route.view === "map" && !route.id) return mapView({ ask, route });
  if (route.view === "search" && !route.id) return searchView({ ask, route });
  const page = await ask("item", { id: route.id });
  const view = route.view || tabsOf(page)[0];
  const draw = view === "overview" && page.kind === "plan" ? planView : VIEWS[view];
  if (!draw) throw new Error(`there is no view “${view}”`);
  const made = await draw({ ask, route: { ...route, view }, page });
  return { ...made, page, body: [frameOf(page, UNDER[view] ?? view), ...made.body] };
}

export function above(route) {
  if (route.view in UNDER) return { id: route.id, view: UNDER[route.view] };
  return { view: "map" };
}
