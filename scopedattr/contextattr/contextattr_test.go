// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package contextattr_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/scopedattr/contextattr"
)

func ExampleContextWithAttributes() {
	ctx := context.Background()
	// This program uses no attributes of contexts: it does not import package scopedattr.
	fmt.Println(ctx == contextattr.ContextWithAttributes(ctx, attribute.String("http.app", "shop")))
	// Output: true
}
