// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// Option configures an [Integration].
type Option interface {
	apply(c config) config
}

type optionFunc func(config) config

func (f optionFunc) apply(c config) config { return f(c) }

// Mode says whether the integration is on.
type Mode int

const (
	// Auto shows spans, and waits for a profiler's registration before it correlates
	// and defers transactions.
	Auto Mode = iota
	// Enabled correlates and defers transactions from the start on.
	Enabled
	// Disabled does nothing.
	Disabled
)

// DefaultBufferSize is how many transactions wait at most if that is not chosen.
const DefaultBufferSize = 8096

// DefaultMaxDelay is how long transactions wait at most if that is not chosen.
const DefaultMaxDelay = 30 * time.Second

// maxBufferSize bounds what is asked for by mistake: each transaction that waits takes a
// kilobyte and more.
const maxBufferSize = 1 << 20

type config struct {
	// mode, socketDir and bufferSize are nil for what the environment says.
	mode       *Mode
	socketDir  *string
	bufferSize *int
	// maxDelay is 0 for the default.
	maxDelay time.Duration
	resource *resource.Resource
	runtime  *goruntime.Runtime
}

// The environment's names.
const (
	enabledKey    = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED"
	socketDirKey  = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR"
	bufferSizeKey = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE"
)

// settings is a config with all defaults.
type settings struct {
	mode       Mode
	socketDir  string // "" for the default ones
	bufferSize int
	maxDelay   time.Duration
	resource   *resource.Resource
	runtime    *goruntime.Runtime
}

// newSettings reports what is not valid and takes the default instead.
func newSettings(opts []Option) settings {
	var c config
	for _, o := range opts {
		c = o.apply(c)
	}
	s := settings{mode: Auto, bufferSize: DefaultBufferSize, maxDelay: DefaultMaxDelay, runtime: c.runtime}
	if c.resource != nil {
		// What the TracerProvider makes of it, which meets the same errors.
		s.resource, _ = resource.Merge(resource.Environment(), c.resource)
	}
	invalid := func(name string, value any, want string, instead any) {
		otel.Handle(fmt.Errorf("universal profiling: %s is %q: want %s, taken as %v", name, fmt.Sprint(value), want, instead))
	}

	const wantMode = "true, false or auto"
	if c.mode == nil {
		switch v := strings.TrimSpace(os.Getenv(enabledKey)); strings.ToLower(v) {
		case "", "auto":
		case "true":
			s.mode = Enabled
		case "false":
			s.mode = Disabled
		default:
			invalid(enabledKey, v, wantMode, "auto")
		}
	} else if s.mode = *c.mode; s.mode < Auto || s.mode > Disabled {
		invalid("WithEnabled", int(s.mode), "Enabled, Disabled or Auto", "Auto")
		s.mode = Auto
	}

	wantSize := "a number from 1 to " + strconv.Itoa(maxBufferSize)
	valid := func(n int) bool { return n >= 1 && n <= maxBufferSize }
	switch v := strings.TrimSpace(os.Getenv(bufferSizeKey)); {
	case c.bufferSize != nil && valid(*c.bufferSize):
		s.bufferSize = *c.bufferSize
	case c.bufferSize != nil:
		invalid("WithBufferSize", *c.bufferSize, wantSize, DefaultBufferSize)
	case v != "":
		if n, err := strconv.Atoi(v); err == nil && valid(n) {
			s.bufferSize = n
		} else {
			invalid(bufferSizeKey, v, wantSize, DefaultBufferSize)
		}
	}

	if c.maxDelay < 0 {
		invalid("WithMaxDelay", c.maxDelay, "a positive duration", DefaultMaxDelay)
	} else if c.maxDelay > 0 {
		s.maxDelay = c.maxDelay
	}

	s.socketDir = os.Getenv(socketDirKey)
	if c.socketDir != nil {
		s.socketDir = *c.socketDir
	}
	if s.runtime == nil && s.mode != Disabled {
		s.runtime = goruntime.Calibrate()
	}
	return s
}

// WithEnabled turns the integration on or off, whatever the environment variable
// ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED says.
func WithEnabled(m Mode) Option {
	return optionFunc(func(c config) config {
		c.mode = &m
		return c
	})
}

// WithSocketDir chooses the directory of the socket, whatever the environment variable
// ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR says. "" stands for the
// default.
func WithSocketDir(dir string) Option {
	return optionFunc(func(c config) config {
		c.socketDir = &dir
		return c
	})
}

// WithBufferSize chooses how many transactions wait at most in each exporter, whatever
// the environment variable ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE
// says.
func WithBufferSize(transactions int) Option {
	return optionFunc(func(c config) config {
		c.bufferSize = &transactions
		return c
	})
}

// WithMaxDelay chooses how long a profiler may have transactions wait for its stack traces. If it
// asks for more, they wait this long, and [otel.Handle] gets to know once. Who may ask is any
// process of the user. 0 stands for the default, [DefaultMaxDelay].
func WithMaxDelay(d time.Duration) Option {
	return optionFunc(func(c config) config {
		c.maxDelay = d
		return c
	})
}

// WithResource tells which service this is: a profiler that is running already reads
// that as soon as the integration starts, before any span tells. Without it that is
// what [resource.Default] says, which knows OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES, until the first span.
func WithResource(r *resource.Resource) Option {
	return optionFunc(func(c config) config {
		c.resource = r
		return c
	})
}

// withRuntime replaces what is known of the Go runtime, for tests of what is refused.
func withRuntime(r *goruntime.Runtime) Option {
	return optionFunc(func(c config) config {
		c.runtime = r
		return c
	})
}
