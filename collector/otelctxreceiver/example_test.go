// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver_test

import (
	"fmt"

	"go.opentelemetry.io/collector/receiver"

	"github.com/otelctx/otelctx/collector/otelctxreceiver"
)

// This is how to register the receiver in a hand-written Collector. The Collector builder generates
// such code from builder-config.yaml.
func ExampleNewFactory() {
	factory := otelctxreceiver.NewFactory()
	factories := map[string]receiver.Factory{factory.Type().String(): factory}
	for name := range factories {
		fmt.Println(name)
	}
	// Output: otelctx
}
