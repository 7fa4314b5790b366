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
			text.add(scenarios[m.scenario].name, m.name, m.score)
			m.verdict(t)
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
			each = append(each, choice{i, publication})
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

func (m *measured) verdict(t *testing.T) {
	t.Helper()
	sc := scenarios[m.scenario]
	name := sc.name + ", " + m.name
	require.Positive(t, m.inside, name)
	require.Positive(t, m.outside, name)
	assert.Less(t, m.untold, 2*m.samples(), name)
	assert.Equal(t, m.proven, m.unproven == 0, name)
	if m.proven {
		assert.Equal(t, m.given, m.right, name)
		assert.Zero(t, m.outsideGiven, name)
	}
	if m.exact && (!m.slots || !sc.noGoroutineSlots) {
		assert.GreaterOrEqual(t, m.recall(), 99.9, name)
	}
}

// measured is a service of a publication, and what the recorder says of it.
type measured struct {
	publication
	score

	scenario int
	child    *childproc.Child
	// path is where the service says which spans there were.
	path string
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
		m.child, _ = startWorkload(t, c.scenario, c.publication, m.path)
		ms = append(ms, m)
	}
	// A guess, to begin with. To begin and to end takes longer than it does to sample.
	duration := time.Duration(*samples*len(ms)) * time.Second / 300
	deadline := time.Now().Add(10 * time.Minute)
	for taken := 0; taken < *samples; {
		require.True(t, time.Now().Before(deadline), "%d samples", taken)
		result := r.start(t, "--all", fmt.Sprintf("--freq=%d", frequency), "--duration="+duration.String()).wait(t)
		least := int(^uint(0) >> 1)
		for _, m := range ms {
			m.look(result)
			least = min(least, m.taken())
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
func (m *measured) taken() int {
	inside := func(s sight) bool { return s.inside }
	outside := func(s sight) bool { return !s.inside }
	if slices.ContainsFunc(m.seen, inside) && slices.ContainsFunc(m.seen, outside) {
		return len(m.seen)
	}
	return min(len(m.seen), *samples-1)
}

// look keeps what a recording says of the service.
func (m *measured) look(r *result) {
	r.observations(m.child.PID(), func(o observation, times int) {
		if !o.proven {
			m.unproven += times
		}
		number, inside, ok := told(o.names)
		if !ok {
			m.untold += times
			return
		}
		for range times {
			m.seen = append(m.seen, sight{inside, number, o.given})
		}
	})
}

// judge compares what the recorder has said with what was so, when the service has
// written which spans there were.
func (m *measured) judge(t *testing.T) {
	t.Helper()
	m.child.Expect("written")
	m.child.Done()
	spans, err := readSpans(m.path)
	require.NoError(t, err)
	for _, s := range m.seen {
		if !s.inside {
			m.add(false, s.given != span{}, false)
			continue
		}
		require.Less(t, s.number, uint64(len(spans)))
		m.add(true, s.given != span{}, s.given == spans[s.number])
	}
}
