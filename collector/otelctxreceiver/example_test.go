// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver_test

import (
	"fmt"

	"go.opentelemetry.io/collector/receiver"

	"github.com/otelctx/otelctx/collector/otelctxreceiver"
)

// This is a Collector written by hand. The builder generates the same from builder-config.yaml.
func ExampleNewFactory() {
	factory := otelctxreceiver.NewFactory()
	factories := map[string]receiver.Factory{factory.Type().String(): factory}
	for name := range factories {
		fmt.Println(name)
	}
	// Output: otelctx
}
