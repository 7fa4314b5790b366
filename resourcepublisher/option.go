// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/environment"
)

// Option configures a [Publisher]. If an option is given more than once, the last one
// wins.
type Option interface {
	apply(c config) config
}

type optionFunc func(config) config

func (f optionFunc) apply(c config) config { return f(c) }

type config struct {
	keep attribute.Filter
	// enabled is nil if the option is not given: the environment variable then decides.
	enabled *bool
}

func newConfig(opts []Option) config {
	var c config
	if hidden := environment.ProcessContextHiddenKeys.List(); len(hidden) > 0 {
		keys := make([]attribute.Key, len(hidden))
		for i, key := range hidden {
			keys[i] = attribute.Key(key)
		}
		c.keep = attribute.NewDenyKeysFilter(keys...)
	}
	for _, o := range opts {
		c = o.apply(c)
	}
	return c
}

func (c config) isEnabled() bool {
	if c.enabled != nil {
		return *c.enabled
	}
	return !environment.ProcessContextDisabled.Bool()
}

// WithAttributeFilter publishes only the attributes of the resource for which keep returns true.
// Use it to leave out secrets, such as those in process.command_args: anyone who is allowed to read
// the process's memory can read the published attributes. [attribute.NewDenyKeysFilter] and
// [attribute.NewAllowKeysFilter] return filters.
//
// By default all attributes are published except those listed in the environment variable
// OTELCTX_PROCESS_CONTEXT_HIDDEN_KEYS. The filter replaces that list, and also applies to every
// later update. It does not apply to attributes added by [SetAttributes], and does not change the
// resource of the TracerProvider. keep must not call this package, because a lock is held during
// the call.
func WithAttributeFilter(keep attribute.Filter) Option {
	return optionFunc(func(c config) config {
		c.keep = keep
		return c
	})
}

// WithEnabled turns publishing on or off. It overrides the environment variable
// OTELCTX_PROCESS_CONTEXT_DISABLED.
func WithEnabled(enabled bool) Option {
	return optionFunc(func(c config) config {
		c.enabled = &enabled
		return c
	})
}
