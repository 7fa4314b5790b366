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

// Mode is the mode of the integration: see [WithMode].
type Mode int

const (
	// ModeAuto publishes spans at once, but correlates and delays transactions only after a profiler
	// has registered.
	ModeAuto Mode = iota
	// ModeEnabled publishes spans, and correlates and delays transactions, from the start.
	ModeEnabled
	// ModeDisabled does nothing.
	ModeDisabled
)

// Defaults of [WithBufferSize] and [WithMaxDelay].
const (
	defaultBufferSize = 8096
	defaultMaxDelay   = 30 * time.Second
)

// maxBufferSize guards against mistakes: each waiting transaction takes at least a kilobyte.
const maxBufferSize = 1 << 20

type config struct {
	// mode, socketDir and bufferSize are nil if the environment decides.
	mode       *Mode
	socketDir  *string
	bufferSize *int
	// maxDelay is 0 for the default.
	maxDelay time.Duration
	resource *resource.Resource
	runtime  *goruntime.Runtime
}

// Environment variables.
const (
	enabledKey    = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED"
	socketDirKey  = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR"
	bufferSizeKey = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE"
)

// settings is a config with all defaults applied.
type settings struct {
	mode       Mode
	socketDir  string // "" for the default directories
	bufferSize int
	maxDelay   time.Duration
	resource   *resource.Resource
	runtime    *goruntime.Runtime
}

// newSettings applies the options and the environment. It reports invalid values, and replaces them
// with the defaults.
func newSettings(opts []Option) settings {
	var c config
	for _, o := range opts {
		c = o.apply(c)
	}
	s := settings{mode: ModeAuto, bufferSize: defaultBufferSize, maxDelay: defaultMaxDelay, runtime: c.runtime}
	if c.resource != nil {
		// The TracerProvider merges resources in the same way, and reports the error.
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
			s.mode = ModeEnabled
		case "false":
			s.mode = ModeDisabled
		default:
			invalid(enabledKey, v, wantMode, "auto")
		}
	} else if s.mode = *c.mode; s.mode < ModeAuto || s.mode > ModeDisabled {
		invalid("WithMode", int(s.mode), "ModeEnabled, ModeDisabled or ModeAuto", "ModeAuto")
		s.mode = ModeAuto
	}

	wantSize := "a number from 1 to " + strconv.Itoa(maxBufferSize)
	valid := func(n int) bool { return n >= 1 && n <= maxBufferSize }
	switch v := strings.TrimSpace(os.Getenv(bufferSizeKey)); {
	case c.bufferSize != nil && valid(*c.bufferSize):
		s.bufferSize = *c.bufferSize
	case c.bufferSize != nil:
		invalid("WithBufferSize", *c.bufferSize, wantSize, defaultBufferSize)
	case v != "":
		if n, err := strconv.Atoi(v); err == nil && valid(n) {
			s.bufferSize = n
		} else {
			invalid(bufferSizeKey, v, wantSize, defaultBufferSize)
		}
	}

	if c.maxDelay < 0 {
		invalid("WithMaxDelay", c.maxDelay, "a positive duration", defaultMaxDelay)
	} else if c.maxDelay > 0 {
		s.maxDelay = c.maxDelay
	}

	s.socketDir = os.Getenv(socketDirKey)
	if c.socketDir != nil {
		s.socketDir = *c.socketDir
	}
	if s.runtime == nil && s.mode != ModeDisabled {
		s.runtime = goruntime.Calibrate()
	}
	return s
}

// WithMode chooses the mode of the integration. It overrides the environment variable
// ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED.
func WithMode(m Mode) Option {
	return optionFunc(func(c config) config {
		c.mode = &m
		return c
	})
}

// WithSocketDir sets the directory of the socket. It overrides the environment variable
// ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR. If dir is empty, the default is used.
func WithSocketDir(dir string) Option {
	return optionFunc(func(c config) config {
		c.socketDir = &dir
		return c
	})
}

// WithBufferSize sets the maximum number of transactions that wait in each exporter. It overrides
// the environment variable ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_BUFFER_SIZE.
func WithBufferSize(transactions int) Option {
	return optionFunc(func(c config) config {
		c.bufferSize = &transactions
		return c
	})
}

// WithMaxDelay limits the time that transactions wait for stack traces. If a profiler asks for a
// longer delay, they wait for d, and the request is reported to [otel.Handle], but not a second
// time with the same delay. The limit protects against other processes of the same user, any of
// which can ask for a delay. The default, for which 0 stands, too, is 30 seconds.
func WithMaxDelay(d time.Duration) Option {
	return optionFunc(func(c config) config {
		c.maxDelay = d
		return c
	})
}

// WithResource sets the resource that identifies the service to profilers. They can read it as soon
// as the integration starts. Without this option they read [resource.Default], which includes
// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, until the first span provides its resource.
func WithResource(r *resource.Resource) Option {
	return optionFunc(func(c config) config {
		c.resource = r
		return c
	})
}

// withRuntime replaces the result of calibration, for tests of unsupported Go runtimes.
func withRuntime(r *goruntime.Runtime) Option {
	return optionFunc(func(c config) config {
		c.runtime = r
		return c
	})
}
