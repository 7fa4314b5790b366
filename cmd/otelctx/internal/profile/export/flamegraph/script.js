// Copyright The otelctx Authors. SPDX-License-Identifier: Apache-2.0
"use strict";

// Texts of the profile come from foreign processes: they are only ever set as text.
const profiles = JSON.parse(document.getElementById("profiles").textContent);
const rowHeight = 18;
const NONE = 0, OTHERS = 1; // of names, endpoints and traces
const NODE = 0, NAME = 1, ENDPOINT = 2, TRACE = 3, COUNT = 4, FIELDS = 5; // of samples
const element = id => document.getElementById(id);
const graph = element("graph");

let profile, nodes, root, zoomed, colours;
let sortBy = "self";

// show shows one of the profiles.
function show(number) {
	profile = profiles[number];
	document.title = element("title").textContent = profile.title;
	nodes = [];
	for (let i = 0; i < profile.nodes.length; i += 2) {
		const n = { parent: profile.nodes[i], name: profile.functions[profile.nodes[i + 1]], children: [], own: 0, total: 0 };
		if (nodes.push(n) > 1) nodes[n.parent].children.push(n);
	}
	root = nodes[0];
	root.name = "all";
	for (const n of nodes) n.children.sort((a, b) => a.name < b.name ? -1 : 1);
	element("cut").hidden = !profile.cut;
	choices();
	choosePalette();
	reset();
}

// amount returns what samples stand for: a time, or bytes.
function amount(samples) {
	if (!profile.allocations && !profile.live) return (samples * profile.period / 1e9).toFixed(3) + " s";
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let n = samples, unit = 0;
	while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
	return n.toFixed(unit ? 1 : 0) + " " + units[unit];
}

function share(part, whole) { return (whole ? 100 * part / whole : 0).toFixed(1) + " %"; }

// keeps returns a function that reports whether the filters keep the sample at an index.
function keeps() {
	const s = profile.samples, trace = element("trace").value.trim().toLowerCase();
	const name = element("name").value, endpoint = element("endpoint").value;
	return i => {
		const inSpan = s[i + TRACE] !== NONE;
		if (trace && !(s[i + TRACE] > OTHERS && profile.traces[s[i + TRACE]].startsWith(trace))) return false;
		if (endpoint !== "all" && !(inSpan && s[i + ENDPOINT] === Number(endpoint))) return false;
		switch (name) {
		case "all": return true;
		case "inside": return inSpan;
		case "outside": return !inSpan;
		default: return inSpan && s[i + NAME] === Number(name);
		}
	};
}

// count counts the samples that the filters keep.
function count() {
	for (const n of nodes) n.own = n.total = 0;
	const kept = keeps(), s = profile.samples;
	for (let i = 0; i < s.length; i += FIELDS) {
		if (kept(i)) nodes[s[i + NODE]].own += s[i + COUNT];
	}
	for (let i = nodes.length - 1; i >= 0; i--) {
		nodes[i].total += nodes[i].own;
		if (i > 0) nodes[nodes[i].parent].total += nodes[i].total;
	}
	while (zoomed.total === 0 && zoomed !== root) zoomed = nodes[zoomed.parent];
}

function draw() {
	const words = element("search").value.toLowerCase();
	const found = n => words !== "" && n !== root && n.name.toLowerCase().includes(words);
	const least = zoomed.total / Math.max(graph.clientWidth, 1); // samples of a pixel
	const shown = [];
	let depth = 0, matched = 0;
	const around = [];
	for (let n = zoomed; n !== root; ) around.unshift(n = nodes[n.parent]);
	for (const n of around) shown.push(box(n, depth++, 0, 1, found(n), true));
	let deepest = depth;
	const rest = [{ n: zoomed, depth, left: 0, inside: false }];
	while (rest.length > 0) {
		const { n, depth, left, inside } = rest.pop();
		const hit = found(n);
		if (hit && !inside) matched += n.total;
		if (n.total > 0 && n.total >= least) {
			shown.push(box(n, depth, left / zoomed.total, n.total / zoomed.total, hit, false));
			deepest = Math.max(deepest, depth);
		}
		let next = left;
		for (const c of n.children) {
			if (c.total > 0) rest.push({ n: c, depth: depth + 1, left: next, inside: inside || hit });
			next += c.total;
		}
	}
	graph.replaceChildren(...shown);
	graph.style.height = (deepest + 1) * rowHeight + "px";
	let text = profile.allocations ? amount(root.total) + " allocated"
		: profile.live ? amount(root.total) + " in use"
		: profile.wall ? amount(root.total) + " of wall-clock time in spans"
		: root.total.toLocaleString("en") + " samples, " + amount(root.total) + " of CPU time";
	if (zoomed !== root) text += "; shown: " + share(zoomed.total, root.total);
	if (words !== "") text += "; found: " + share(matched, zoomed.total);
	element("summary").textContent = text;
	list();
	remember();
}

// list fills the table of functions: their own samples, and those of what they call, in the part that is shown.
function list() {
	const most = 50, sums = new Map(), inside = new Map();
	const rest = [{ n: zoomed, leave: false }];
	while (rest.length > 0) {
		const { n, leave } = rest.pop();
		const depth = inside.get(n.name) || 0;
		if (leave) { inside.set(n.name, depth - 1); continue; }
		if (n.total === 0) continue;
		const sum = sums.get(n.name) || { name: n.name, self: 0, total: 0 };
		sum.self += n.own;
		if (depth === 0) sum.total += n.total; // A function that calls itself counts once.
		sums.set(n.name, sum);
		inside.set(n.name, depth + 1);
		rest.push({ n, leave: true });
		for (const c of n.children) rest.push({ n: c, leave: false });
	}
	sums.delete(root.name);
	const sorted = [...sums.values()].sort((a, b) => b[sortBy] - a[sortBy] || b.total - a.total || (a.name < b.name ? -1 : 1));
	element("functions").replaceChildren(...sorted.slice(0, most).map(sum => {
		const row = document.createElement("tr");
		for (const text of [amount(sum.self), share(sum.self, zoomed.total), amount(sum.total), share(sum.total, zoomed.total), sum.name]) {
			row.appendChild(document.createElement("td")).textContent = text;
		}
		return row;
	}));
	for (const id of ["self", "total"]) element(id).classList.toggle("sorted", sortBy === id);
}

// remember puts the selection into the page's address. restore takes it from there.
function remember() {
	const chosen = new URLSearchParams();
	for (const [id, without] of [["kind", "0"], ["search", ""], ["endpoint", "all"], ["name", "all"], ["trace", ""]]) {
		if (element(id).value !== without) chosen.set(id, element(id).value);
	}
	if (zoomed !== root) chosen.set("zoom", nodes.indexOf(zoomed));
	if (sortBy !== "self") chosen.set("sort", sortBy);
	history.replaceState(null, "", "#" + chosen);
}

function restore() {
	const chosen = new URLSearchParams(location.hash.slice(1));
	element("kind").value = profiles[chosen.get("kind")] ? chosen.get("kind") : "0";
	if (chosen.get("sort") === "total") sortBy = "total";
	show(element("kind").value);
	for (const id of ["search", "endpoint", "name", "trace"]) {
		const before = element(id).value;
		if (chosen.has(id)) element(id).value = chosen.get(id);
		if (element(id).value === "" && before !== "") element(id).value = before; // There is no such choice.
	}
	zoomed = nodes[chosen.get("zoom")] || root;
	refresh();
}

function box(n, depth, left, width, hit, around) {
	const b = document.createElement("div");
	if (width * graph.clientWidth > 24) b.textContent = n.name; // where there is room
	else b.classList.add("narrow");
	b.style.left = 100 * left + "%";
	b.style.width = 100 * width + "%";
	b.style.top = depth * rowHeight + "px";
	b.style.background = colours.get(group(n.name)) || "var(--rest)";
	b.classList.toggle("found", hit);
	b.classList.toggle("around", around);
	b.node = n;
	return b;
}

// group returns what a colour stands for: the package of a function, or a kind of wait.
function group(name) {
	if (name.startsWith("[")) return name;
	const brackets = name.indexOf("["), path = name.slice(0, brackets < 0 ? name.length : brackets).lastIndexOf("/") + 1;
	const dot = name.indexOf(".", path);
	return dot < 0 ? "" : name.slice(0, dot);
}

const isWait = name => /^\[(waiting|syscall|cgo)/.test(name);

// choosePalette gives a colour to the kinds of wait and to the packages that cover most of the graph, and explains them.
function choosePalette() {
	const totals = new Float64Array(nodes.length), areas = new Map(), s = profile.samples;
	for (let i = 0; i < s.length; i += FIELDS) totals[s[i + NODE]] += s[i + COUNT];
	for (let i = nodes.length - 1; i > 0; i--) {
		totals[nodes[i].parent] += totals[i];
		const g = group(nodes[i].name);
		if (g !== "") areas.set(g, (areas.get(g) || 0) + totals[i]);
	}
	const sorted = [...areas].sort((a, b) => b[1] - a[1]).map(([g]) => g);
	colours = new Map();
	sorted.filter(isWait).slice(0, 4).forEach((g, n) => colours.set(g, "var(--wait" + n + ")"));
	for (const g of sorted.filter(isWait).slice(4)) colours.set(g, "var(--wait3)");
	if (areas.has("[runnable]")) colours.set("[runnable]", "var(--ready)");
	sorted.filter(g => !g.startsWith("[")).slice(0, 8).forEach((g, n) => colours.set(g, "var(--package" + n + ")"));
	const entry = (colour, text) => {
		const e = document.createElement("span");
		e.appendChild(document.createElement("i")).style.background = colour;
		e.append(text);
		return e;
	};
	element("legend").replaceChildren(...[...colours].map(([g, colour]) => entry(colour, g)), entry("var(--rest)", "everything else"));
}

// inSpans returns how many samples in spans each value of a field has, the most first.
function inSpans(field) {
	const counts = new Map(), s = profile.samples;
	for (let i = 0; i < s.length; i += FIELDS) {
		if (s[i + TRACE] !== NONE) counts.set(s[i + field], (counts.get(s[i + field]) || 0) + s[i + COUNT]);
	}
	return [...counts].sort((a, b) => b[1] - a[1]);
}

function choices() {
	element("name").replaceChildren(new Option("everything", "all"), new Option("in spans", "inside"), new Option("outside of spans", "outside"));
	element("endpoint").replaceChildren(new Option("all", "all"));
	element("traces").replaceChildren();
	for (const [id, field, names] of [["name", NAME, profile.names], ["endpoint", ENDPOINT, profile.endpoints]]) {
		for (const [n, samples] of inSpans(field)) {
			const text = n === NONE ? "(without a name)" : n === OTHERS ? "(other names)" : names[n];
			element(id).append(new Option(text + ", " + amount(samples), n));
		}
	}
	for (const [t, samples] of inSpans(TRACE).slice(0, 500)) {
		if (t > OTHERS) element("traces").append(new Option(amount(samples), profile.traces[t]));
	}
}

function refresh() { count(); draw(); }
function zoom(n) { zoomed = n; draw(); }
function reset() {
	for (const id of ["search", "trace"]) element(id).value = "";
	for (const id of ["name", "endpoint"]) element(id).value = "all";
	zoomed = root;
	refresh();
}

graph.addEventListener("click", e => { if (e.target.node) zoom(e.target.node); });
graph.addEventListener("mouseover", e => {
	const n = e.target.node;
	if (n) element("details").textContent = n.name + ": " + amount(n.total) + ", " + share(n.total, root.total) + "; itself " + amount(n.own);
});
element("search").addEventListener("input", draw);
for (const id of ["name", "endpoint", "trace"]) element(id).addEventListener("input", refresh);
element("reset").addEventListener("click", reset);
for (const id of ["self", "total"]) element(id).addEventListener("click", () => { sortBy = id; draw(); });
element("functions").addEventListener("click", e => {
	if (e.target !== e.target.parentNode.lastChild) return;
	element("search").value = e.target.textContent;
	draw();
});
document.querySelector("form").addEventListener("submit", e => e.preventDefault());
document.addEventListener("keydown", e => { if (e.key === "Escape") reset(); });
window.addEventListener("resize", draw);

element("kind").append(...profiles.map((p, n) => new Option(p.allocations ? "allocations" : p.live ? "memory in use" : p.wall ? "wall-clock time" : "CPU time", n)));
element("kind").addEventListener("input", () => show(element("kind").value));
element("kinds").hidden = profiles.length === 1;
window.addEventListener("hashchange", restore);
restore();
