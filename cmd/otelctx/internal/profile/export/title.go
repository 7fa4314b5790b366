// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// title says what a page shows: of which services, on which hosts, when, for how long, and how often it was sampled.
type title struct {
	services, hosts names
	start, end      uint64 // nanoseconds since the epoch
	kind            string
	period          int64 // nanoseconds between two samples or snapshots, or 0
}

func (t *title) add(resource *resourcepb.Resource, p *profilespb.Profile, kind string) {
	for _, a := range resource.GetAttributes() {
		switch text, _ := profile.Text(a.GetValue()); a.GetKey() {
		case string(semconv.ServiceNameKey):
			t.services.add(text)
		case string(semconv.HostNameKey):
			t.hosts.add(text)
		}
	}
	if start := p.GetTimeUnixNano(); start != 0 {
		if t.start == 0 || start < t.start {
			t.start = start
		}
		t.end = max(t.end, start+p.GetDurationNano())
	}
	t.period, t.kind = p.GetPeriod(), kind
}

func (t *title) String() string {
	text := "Flame graph"
	if s := t.services.String(); s != "" {
		text = s
	}
	if h := t.hosts.String(); h != "" {
		text += " on " + h
	}
	if t.start == 0 || t.end > math.MaxInt64 {
		return text
	}
	start, end := time.Unix(0, int64(t.start)), time.Unix(0, int64(t.end))
	text += fmt.Sprintf(", %s, %v", start.UTC().Format(time.DateTime+" MST"), end.Sub(start).Round(100*time.Millisecond))
	switch t.kind {
	case profile.TypeAllocSpace:
		return text + ", allocations"
	case profile.TypeInuseSpace:
		return text + ", memory in use"
	}
	if t.period > 0 {
		rate := (int64(time.Second) + t.period/2) / t.period
		if t.kind == profile.TypeWall {
			return text + fmt.Sprintf(", %d snapshots per second", rate)
		}
		text += fmt.Sprintf(", %d Hz", rate)
	}
	return text
}

// names are the first few different names of many.
type names struct {
	first []string
	more  bool
}

// maxNames is the maximum number of names, and maxNameRunes the maximum length of each.
const maxNames, maxNameRunes = 3, 60

func (n *names) add(name string) {
	if runes := []rune(name); len(runes) > maxNameRunes {
		name = string(runes[:maxNameRunes]) + "…"
	}
	switch {
	case name == "" || slices.Contains(n.first, name):
	case len(n.first) < maxNames:
		n.first = append(n.first, name)
	default:
		n.more = true
	}
}

func (n *names) String() string {
	text := strings.Join(n.first, ", ")
	if n.more {
		text += " and others"
	}
	return text
}
