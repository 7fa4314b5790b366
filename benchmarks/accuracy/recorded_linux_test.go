// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// frequency is how often is sampled in a second, no divisor of anything.
const frequency = 997

// TestRecorder is about otelctx record.
func TestRecorder(t *testing.T) {
	r := buildRecorder(t)
	t.Run("Accuracy", r.testAccuracy)
	t.Run("Overhead", r.testOverhead)
	t.Run("Long", r.testLong)
}

// testAccuracy prints how often it is right, by what the process publishes, and fails if
// one that has to be always right is not.
func (r recorder) testAccuracy(t *testing.T) {
	var text table
	text.header()
	for _, services := range r.choose() {
		for _, m := range r.measure(t, services) {
			for _, v := range m.views {
				if m.seenBy(v.observer) {
					text.add(scenarios[m.scenario].name, m.name+v.note, v.score)
					m.verdict(t, v)
				}
			}
		}
	}
	t.Log(text.String())
}

// choice is a service: the numbers of its scenario and of its publication.
type choice struct{ scenario, publication int }

// choose returns which services are recorded at a time. Usually that is each publication
// once, where it is most easily wrong.
func (recorder) choose() (together [][]choice) {
	var brief []choice
	for i, sc := range scenarios {
		for _, publication := range sc.brief {
			brief = append(brief, choice{i, publication})
		}
		var each []choice
		for publication := range all {
			if !publications[publication].peer || !sc.ours {
				each = append(each, choice{i, publication})
			}
		}
		if *full || sc.brief != nil {
			together = append(together, each)
		}
	}
	if *full || testenv.All() {
		return together
	}
	return [][]choice{brief}
}

func (m *measured) verdict(t *testing.T, v *view) {
	t.Helper()
	sc := scenarios[m.scenario]
	name := sc.name + ", " + m.name + v.note
	require.Positive(t, v.inside, name)
	require.Positive(t, v.outside, name)
	assert.Less(t, v.untold, 2*v.samples(), name)
	if m.peer {
		return
	}
	assert.Equal(t, m.proven, v.unproven == 0, name)
	if m.proven {
		assert.Equal(t, v.given, v.right, name)
		assert.Zero(t, v.outsideGiven, name)
	}
	if m.exact && (!m.slots || !sc.noGoroutineTable) {
		assert.GreaterOrEqual(t, v.recall(), 99.9, name)
	}
}

// observer is a way to record.
type observer struct {
	// note is for the table.
	note string
	args []string
	// labels says that it sees labels and nothing else.
	labels bool
}

// observers record at the same time. The second one reads labels as the OpenTelemetry eBPF
// profiler does.
var observers = []observer{{}, {note: ", by its labels", args: []string{"--carrier=labels"}, labels: true}}

// measured is a service of a publication, and what the observers say of it.
type measured struct {
	publication

	scenario int
	child    *childproc.Child
	// path is where the service says which spans there were.
	path string
	// views are by observer.
	views []*view
}

// seenBy reports whether an observer can see spans of the publication.
func (m *measured) seenBy(o observer) bool { return m.labels && o.labels || !m.peer && !o.labels }

// view is what an observer says of a service.
type view struct {
	observer
	score

	// untold is how many samples have no stack that tells anything, unproven how many
	// were given a span that is not proven.
	untold, unproven int
	// seen are the samples with such a stack.
	seen []sight
}

// sight is a sample with a stack that tells what it burned for.
type sight struct {
	inside bool
	number uint64
	given  span
}

// measure has services work, and records them until there are enough samples of each.
func (r recorder) measure(t *testing.T, services []choice) []*measured {
	t.Helper()
	var ms []*measured
	for _, c := range services {
		m := &measured{publication: publications[c.publication], scenario: c.scenario, path: filepath.Join(t.TempDir(), "spans")}
		for _, o := range observers {
			m.views = append(m.views, &view{observer: o})
		}
		m.child, _ = startWorkload(t, c.scenario, c.publication, m.path)
		ms = append(ms, m)
	}
	// A guess, to begin with. To begin and to end takes longer than it does to sample.
	duration := time.Duration(*samples*len(ms)) * time.Second / 300
	deadline := time.Now().Add(10 * time.Minute)
	for taken := 0; taken < *samples; {
		require.True(t, time.Now().Before(deadline), "%d samples", taken)
		recordings := make([]*recording, len(observers))
		for i, o := range observers {
			args := append([]string{"--all", fmt.Sprintf("--freq=%d", frequency), "--duration=" + duration.String()}, o.args...)
			recordings[i] = r.startTo(t, fmt.Sprintf("profile%d.otlp", i), args...)
		}
		least := int(^uint(0) >> 1)
		for i, one := range recordings {
			result := one.wait(t)
			for _, m := range ms {
				m.views[i].look(result, m.child.PID())
				least = min(least, m.views[i].taken())
			}
		}
		// As long again as it takes for the rest, at this rate; that may have been none.
		duration = time.Duration(float64(duration) * float64(*samples-least) / float64(max(least-taken, 1)) * 1.1)
		duration = min(max(duration, 300*time.Millisecond), 10*time.Second)
		taken = least
	}
	for _, m := range ms {
		m.child.Send("write")
	}
	for _, m := range ms {
		m.judge(t)
	}
	return ms
}

// taken is how many samples there are, less than enough while all are inside of spans or
// all outside.
func (v *view) taken() int {
	inside := func(s sight) bool { return s.inside }
	outside := func(s sight) bool { return !s.inside }
	if slices.ContainsFunc(v.seen, inside) && slices.ContainsFunc(v.seen, outside) {
		return len(v.seen)
	}
	return min(len(v.seen), *samples-1)
}

// look keeps what a recording says of a service.
func (v *view) look(r *result, pid int) {
	r.observations(pid, func(o observation, times int) {
		if !o.proven {
			v.unproven += times
		}
		number, inside, ok := told(o.names)
		if !ok {
			v.untold += times
			return
		}
		for range times {
			v.seen = append(v.seen, sight{inside, number, o.given})
		}
	})
}

// judge compares what the observers have said with what was so, when the service has
// written which spans there were.
func (m *measured) judge(t *testing.T) {
	t.Helper()
	m.child.Expect("written")
	m.child.Done()
	spans, err := readSpans(m.path)
	require.NoError(t, err)
	for _, v := range m.views {
		for _, s := range v.seen {
			if !s.inside {
				v.add(false, s.given != span{}, false)
				continue
			}
			require.Less(t, s.number, uint64(len(spans)))
			v.add(true, s.given != span{}, s.given == spans[s.number])
		}
	}
}
