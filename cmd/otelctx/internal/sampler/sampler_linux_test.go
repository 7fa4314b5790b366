// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/burner"
	"github.com/otelctx/otelctx/internal/childproc"
	"github.com/otelctx/otelctx/reader"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){burner.Role: burner.Run})
}

// open returns a sampler. The test is skipped if this user may not have one.
func open(t testing.TB, c Config) *Sampler {
	t.Helper()
	s, err := Open(c)
	if errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// startBurner returns a burner that burns.
func startBurner(t testing.TB, prepare func(*exec.Cmd), words ...string) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, burner.Role, prepare)
	require.Equal(t, "burning", c.Ask("%s", burner.Words(words...)))
	return c
}

// layoutOf returns where a process shows its spans.
func layoutOf(t testing.TB, pid int) *reader.ThreadLayout {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	l, err := p.ThreadLayout(t.Context())
	require.NoError(t, err)
	return l
}

// testFrequency is more than usual, for the sake of the time that tests take, and no
// divisor of anything.
const testFrequency = 1499

// record samples for a while and returns what there is.
func record(t testing.TB, s *Sampler, d time.Duration) []Sample {
	t.Helper()
	stop := time.AfterFunc(d, func() { assert.NoError(t, s.Stop()) })
	defer stop.Stop()
	var samples []Sample
	for {
		var one Sample
		err := s.Read(&one)
		if errors.Is(err, io.EOF) {
			return samples
		}
		require.NoError(t, err)
		samples = append(samples, one)
	}
}

// verdict is what samples of a burner have come to.
type verdict struct {
	// undecided have no stack that says what is true.
	samples, undecided int
	// inside and outside are those in a span and in none by the truth, found and
	// wrong those of which that span and another one is said, stray those outside
	// for which any is.
	inside, found, wrong int
	outside, stray       int
}

func judge(t testing.TB, c *childproc.Child, samples []Sample) verdict {
	t.Helper()
	unique := map[uint64]bool{}
	for _, s := range samples {
		for _, a := range s.User {
			unique[a] = true
		}
	}
	var addresses []uint64
	for a := range unique {
		addresses = append(addresses, a)
	}
	known := burner.Names(c, addresses)
	v := verdict{samples: len(samples)}
	for _, s := range samples {
		var names []string
		for _, a := range s.User {
			names = append(names, known[a])
		}
		truth, ok := burner.Truth(names)
		switch {
		case !ok:
			v.undecided++
		case truth == 0:
			v.outside++
			if s.Span != nil {
				v.stray++
			}
		default:
			v.inside++
			if s.Span == nil {
				break
			}
			if n := burner.Number(s.Span.SpanID); burner.Same(n, truth) {
				v.found++
			} else {
				v.wrong++
			}
		}
	}
	return v
}

const pid1 = 1

// Every carrier alone, and together: which of them is believed, and how right it is.
func TestSpans(t *testing.T) {
	const exact, most, some = 1, 0.3, 0.0
	for name, test := range map[string]struct {
		words   []string
		carrier reader.CarrierKind
		proven  bool
		// recall is how much of what is in spans must be found at least.
		recall float64
		// wrong says that spans may be wrong.
		wrong bool
	}{
		"record":                         {[]string{burner.Records}, reader.GoroutineRecord, true, exact, false},
		"record, inherited":              {[]string{burner.Records, burner.Started}, reader.GoroutineRecord, true, exact, false},
		"goroutine slots":                {[]string{burner.GoroutineSlots}, reader.GoroutineSlots, true, exact, false},
		"thread slots":                   {[]string{burner.ThreadSlots}, reader.ThreadSlots, true, most, false},
		"layout 1":                       {[]string{burner.Layout1}, reader.ThreadSlots, false, some, true},
		"record before all":              {[]string{burner.Records, burner.GoroutineSlots, burner.ThreadSlots}, reader.GoroutineRecord, true, exact, false},
		"goroutine before thread slots":  {[]string{burner.GoroutineSlots, burner.ThreadSlots}, reader.GoroutineSlots, true, exact, false},
		"record before layout 1":         {[]string{burner.Records, burner.Layout1}, reader.GoroutineRecord, true, exact, false},
		"goroutine slots before layout1": {[]string{burner.GoroutineSlots, burner.Layout1}, reader.GoroutineSlots, true, exact, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{Frequency: testFrequency})
			c := startBurner(t, nil, test.words...)
			require.NoError(t, s.Watch(c.PID(), layoutOf(t, c.PID())))
			samples := record(t, s, 1500*time.Millisecond)
			v := judge(t, c, samples)
			t.Logf("%+v", v)
			require.Greater(t, v.inside, 200)
			require.Greater(t, v.outside, 100)
			assert.Less(t, v.undecided, v.samples/4)
			if !test.wrong {
				assert.Zero(t, v.wrong)
				assert.Zero(t, v.stray)
			}
			assert.GreaterOrEqual(t, float64(v.found), test.recall*float64(v.inside))
			for _, one := range samples {
				assert.Equal(t, c.PID(), one.PID)
				if one.Span != nil {
					require.Equal(t, test.carrier, one.Span.Carrier)
					require.Equal(t, test.proven, one.Span.Proven)
				}
			}
			assert.Zero(t, s.Lost())
		})
	}
}

var _ = slices.Contains[[]int]
var _ = os.Getpid
var _ = filepath.Join
var _ = syscall.CLONE_NEWPID
