// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package otelctxreceiver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	upstream "go.opentelemetry.io/ebpf-profiler/collector"
	"go.opentelemetry.io/ebpf-profiler/collector/config"
	"go.opentelemetry.io/ebpf-profiler/reporter"
)

// Config extends the configuration of the eBPF profiler's receiver.
type Config struct {
	config.Config `mapstructure:",squash"`

	// SpanLinks turns a goroutine's labels trace_id and span_id into a link of its samples to the
	// span. If it is false, these labels become attributes.
	SpanLinks bool `mapstructure:"span_links"`
	// ProcessContext adds the attributes that each process publishes to the process's resource.
	ProcessContext bool `mapstructure:"process_context"`
}

func defaultConfig() component.Config {
	c := &Config{SpanLinks: true, ProcessContext: true}
	if base, ok := upstream.NewFactory().CreateDefaultConfig().(*config.Config); ok {
		c.Config = *base
	}
	return c
}

func createProfiles(ctx context.Context, set receiver.Settings, cfg component.Config, next xconsumer.Profiles) (xreceiver.Profiles, error) {
	c, ok := cfg.(*Config)
	if !ok {
		return nil, fmt.Errorf("configuration of type %T", cfg)
	}
	tel, err := newTelemetry(set.MeterProvider)
	if err != nil {
		return nil, err
	}
	var known *contexts
	if c.ProcessContext {
		known = newContexts(tel, set.Logger)
		next = &enricher{Profiles: next, contexts: known}
	}
	next = valid{next}
	return upstream.BuildProfilesReceiver(
		upstream.WithReporterFactory(func(rc *reporter.Config, next xconsumer.Profiles) (reporter.Reporter, error) {
			rc.ExtraSampleAttrProd = byLabels{}
			r, err := reporter.NewCollector(rc, next)
			if err != nil {
				return nil, err
			}
			return &linker{Reporter: r, links: c.SpanLinks, contexts: known, telemetry: tel}, nil
		}),
		upstream.WithOnShutdown(func() error {
			known.close()
			return nil
		}),
	)(ctx, set, &c.Config, next)
}
