// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/internal/wire"
)

// The page loads no other resources: its script and style are embedded, and its policy forbids any other script.
var (
	//go:embed flamegraph/page.html
	flamePage string
	//go:embed flamegraph/style.css
	flameStyle string
	//go:embed flamegraph/script.js
	flameScript string
)

// flameBounds are the limits of a page. Beyond a limit, the entries with the fewest samples are merged: the
// innermost functions of stacks into their callers, and traces, endpoints and span names into "others".
type flameBounds struct {
	nodes, samples, traces int
	names                  int // maximum number of span names, and likewise of endpoints
	text                   int // bytes of the functions' names
}

// pageBounds keeps a page below about 16 MiB. A merge takes time proportional to the number of samples, so it
// always removes half of the entries, which makes further merges rare.
var pageBounds = flameBounds{nodes: 1 << 16, samples: 1 << 18, names: 1 << 10, traces: 1 << 15, text: 1 << 20}

// htmlEncoder writes a page with a flame graph for each kind of sample.
type htmlEncoder struct {
	to     io.Writer
	flames []*flame
}

func (e *htmlEncoder) add(data *profilespb.ProfilesData) error {
	for resource, p := range profile.Each(data) {
		for _, f := range e.flames {
			if kind := profile.KindOf(data.GetDictionary(), p); kind == f.kind {
				f.title.add(resource, p, kind)
			}
		}
	}
	for s := range eachSample(data) {
		for _, f := range e.flames {
			if f.kind == s.kind {
				f.period = s.unit
				f.add(&s)
			}
		}
	}
	return nil
}

func (e *htmlEncoder) close() error {
	var documents []flameDocument
	for _, f := range e.flames {
		documents = append(documents, f.document())
	}
	encoded, err := json.Marshal(documents) // escapes text that would end the script element
	if err != nil {
		return err
	}
	before, after, _ := strings.Cut(flamePage, "{{profiles}}")
	assets := strings.NewReplacer(
		"{{style}}", flameStyle, "{{style-hash}}", hashOf(flameStyle),
		"{{script}}", flameScript, "{{script-hash}}", hashOf(flameScript),
	)
	page := io.MultiReader(strings.NewReader(assets.Replace(before)), bytes.NewReader(encoded), strings.NewReader(assets.Replace(after)))
	_, err = io.Copy(e.to, page)
	return err
}

// hashOf returns the hash of a script or style in a content security policy.
func hashOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// flame is a flame graph. Its nodes form a tree of functions. It counts the samples of each combination of node,
// span name, endpoint and trace.
type flame struct {
	kind      string // as in sample
	title     title
	bounds    flameBounds
	functions *words
	nodes     []flameNode
	index     map[flameNode]int32
	// The first two entries of each, flameNone and flameOthers, are reserved.
	words [flameKinds]*words

	samples map[flameSample]int64
	period  int64 // nanoseconds per sample, or 1 if samples are counted in nanoseconds or bytes
	cut     bool  // whether the innermost functions of some stacks were removed
}

// flameNode is a node of the tree: a function called by its parent node. The first node is the root, and parents
// precede their children.
type flameNode struct{ parent, function int32 }

// flameSample is a node of the tree, with the number of a word of each kind.
type flameSample struct {
	node  int32
	words [flameKinds]int32
}

// These are the kinds of words of a sample, in the order in which they are merged.
const (
	flameTrace = iota
	flameName
	flameEndpoint

	flameKinds
)

// Among the words of a kind, flameNone means that there is no value, and flameOthers stands for all merged
// values.
const (
	flameNone   = 0
	flameOthers = 1
)

func newFlame(kind string, bounds flameBounds) *flame {
	return &flame{
		kind: kind, bounds: bounds,
		functions: newWords(""), words: [flameKinds]*words{newWords("", "others"), newWords("", "others"), newWords("", "others")},
		nodes: []flameNode{{}}, index: map[flameNode]int32{}, samples: map[flameSample]int64{},
	}
}

// words assigns numbers to strings.
type words struct {
	all   []string
	index map[string]int32 // numbers of all strings except the reserved ones
	first int              // number of the first string that is not reserved
	size  int              // bytes
}

func newWords(reserved ...string) *words {
	return &words{all: reserved, index: map[string]int32{}, first: len(reserved)}
}

func (w *words) number(text string) int32 {
	n, ok := w.index[text]
	if !ok {
		n = int32(len(w.all))
		w.all = append(w.all, text)
		w.index[text] = n
		w.size += len(text)
	}
	return n
}

func (f *flame) add(s *sample) {
	var key flameSample
	for name := range s.frames() {
		key.node = f.child(key.node, name)
	}
	if trace := s.label(labelTraceID); trace != "" {
		for kind, text := range [flameKinds]string{trace, s.label(wire.NameKey), s.label(wire.EndpointKey)} {
			if text != "" {
				key.words[kind] = f.words[kind].number(text)
			}
		}
	}
	f.samples[key] += s.value
	f.shrink()
}

// child returns the node of a function called by parent.
func (f *flame) child(parent int32, function string) int32 {
	key := flameNode{parent, f.functions.number(function)}
	n, ok := f.index[key]
	if !ok {
		n = int32(len(f.nodes))
		f.nodes = append(f.nodes, key)
		f.index[key] = n
	}
	return n
}

// shrink merges entries if the flame graph exceeds its bounds. It removes many entries at once, so that merges are
// rare.
func (f *flame) shrink() {
	for len(f.nodes) > f.bounds.nodes || f.functions.size > f.bounds.text {
		f.cutStacks()
	}
	for kind, limit := range [flameKinds]int{f.bounds.traces, f.bounds.names, f.bounds.names} {
		if len(f.words[kind].all) > limit {
			f.merge(kind)
		}
	}
	if len(f.samples) <= f.bounds.samples {
		return
	}
	for len(f.samples) > f.bounds.samples/2 {
		if kind := slices.IndexFunc(f.words[:], func(w *words) bool { return len(w.all) > w.first }); kind >= 0 {
			f.merge(kind)
		} else {
			f.cutStacks()
		}
	}
}

// cutStacks removes the half of the nodes that have the fewest samples, and attributes their samples to their
// callers.
func (f *flame) cutStacks() {
	f.cut = true
	totals := make([]int64, len(f.nodes))
	for s, n := range f.samples {
		totals[s.node] += n
	}
	order := make([]int32, len(f.nodes))
	for n := len(f.nodes) - 1; n > 0; n-- {
		order[n] = int32(n)
		totals[f.nodes[n].parent] += totals[n]
	}
	// A node never has more samples than its parent. If they have equally many, the stable sort leaves the parent
	// first. The parent of every kept node is therefore kept, too.
	slices.SortStableFunc(order[1:], func(a, b int32) int { return cmp.Compare(totals[b], totals[a]) })
	kept := order[:max(1, len(order)/2)]
	slices.Sort(kept)

	old := f.nodes
	functions := f.functions.all
	f.functions, f.nodes, f.index = newWords(""), []flameNode{{}}, map[flameNode]int32{}
	renumbered := make([]int32, len(old))
	for n := 1; n < len(old); n++ {
		renumbered[n] = renumbered[old[n].parent]
		if len(kept) > 1 && kept[1] == int32(n) {
			kept = kept[1:]
			renumbered[n] = f.child(renumbered[n], functions[old[n].function])
		}
	}
	f.renumber(func(s *flameSample) { s.node = renumbered[s.node] })
}

// merge merges the half of the words of a kind with the fewest samples into "others".
func (f *flame) merge(kind int) {
	old := f.words[kind]
	totals := make([]int64, len(old.all))
	for s, n := range f.samples {
		totals[s.words[kind]] += n
	}
	order := make([]int32, 0, len(old.all))
	for n := old.first; n < len(old.all); n++ {
		order = append(order, int32(n))
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(totals[b], totals[a]) })
	renumbered := make([]int32, len(old.all))
	for n := old.first; n < len(renumbered); n++ {
		renumbered[n] = flameOthers
	}
	renumbered[flameNone], renumbered[flameOthers] = flameNone, flameOthers
	rest := newWords(old.all[:old.first:old.first]...)
	for _, n := range order[:len(order)/2] {
		renumbered[n] = rest.number(old.all[n])
	}
	f.words[kind] = rest
	f.renumber(func(s *flameSample) { s.words[kind] = renumbered[s.words[kind]] })
}

// renumber applies change to the keys of all samples.
func (f *flame) renumber(change func(*flameSample)) {
	old := f.samples
	f.samples = make(map[flameSample]int64, len(old)/2)
	for s, n := range old {
		change(&s)
		f.samples[s] += n
	}
}

// flameDocument is a flame graph as the page's script reads it from JSON.
type flameDocument struct {
	Title string `json:"title"`
	// Period is the number of nanoseconds that a count of 1 stands for.
	Period int64 `json:"period"`
	// Wall is set if the counts are nanoseconds of wall-clock time, not numbers of samples.
	Wall bool `json:"wall,omitempty"`
	// Allocations is set if the counts are allocated bytes, and Live if they are bytes in use.
	Allocations bool     `json:"allocations,omitempty"`
	Live        bool     `json:"live,omitempty"`
	Functions   []string `json:"functions"`
	Names       []string `json:"names"`
	Endpoints   []string `json:"endpoints"`
	Traces      []string `json:"traces"`
	// Nodes are pairs of a parent and a function. Samples are groups of five numbers: node, name, endpoint,
	// trace and count.
	Nodes   []int32 `json:"nodes"`
	Samples []int64 `json:"samples"`
	Cut     bool    `json:"cut"`
}

func (f *flame) document() flameDocument {
	d := flameDocument{
		Title: f.title.String(), Period: f.period, Wall: f.kind == profile.TypeWall, Allocations: f.kind == profile.TypeAllocSpace, Live: f.kind == profile.TypeInuseSpace,
		Functions: f.functions.all, Names: f.words[flameName].all, Endpoints: f.words[flameEndpoint].all, Traces: f.words[flameTrace].all, Cut: f.cut,
		Nodes: make([]int32, 0, 2*len(f.nodes)), Samples: make([]int64, 0, 5*len(f.samples)),
	}
	for _, n := range f.nodes {
		d.Nodes = append(d.Nodes, n.parent, n.function)
	}
	for _, s := range slices.SortedFunc(maps.Keys(f.samples), func(a, b flameSample) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.words[flameName], b.words[flameName]),
			cmp.Compare(a.words[flameEndpoint], b.words[flameEndpoint]), cmp.Compare(a.words[flameTrace], b.words[flameTrace]))
	}) {
		d.Samples = append(d.Samples, int64(s.node), int64(s.words[flameName]), int64(s.words[flameEndpoint]), int64(s.words[flameTrace]), f.samples[s])
	}
	return d
}
