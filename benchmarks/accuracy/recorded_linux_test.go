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
	for i, sc := range scenarios {
		if !sc.brief && !*full {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			for _, m := range r.measure(t, i) {
				text.add(sc.name, m.name, m.score)
				require.Positive(t, m.inside)
				require.Positive(t, m.outside)
				assert.Less(t, m.untold, 2*m.samples(), m.name)
				assert.Equal(t, m.proven, m.unproven == 0, m.name)
				if m.proven {
					assert.Equal(t, m.given, m.right, m.name)
					assert.Zero(t, m.outsideGiven, m.name)
				}
				if m.exact && (!m.slots || !sc.noGoroutineSlots) {
					assert.GreaterOrEqual(t, m.recall(), 99.9, m.name)
				}
			}
		})
	}
	t.Log(text.String())
}

// measured is a service of a publication, and what the recorder says of it.
type measured struct {
	publication
	score

	child *childproc.Child
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

// measure has services work in a scenario, one for each publication, and records them
// until there are enough samples of each.
func (r recorder) measure(t *testing.T, number int) []*measured {
	t.Helper()
	var ms []*measured
	for i, p := range publications[:all] {
		m := &measured{publication: p, path: filepath.Join(t.TempDir(), "spans")}
		m.child, _ = startWorkload(t, number, i, m.path)
		ms = append(ms, m)
	}
	// A guess, to begin with.
	duration := time.Duration(*samples) * time.Second / 300
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
