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
	// This program imports neither scopedattr nor spanctx, so the attributes would be unused.
	fmt.Println(ctx == contextattr.ContextWithAttributes(ctx, attribute.String("http.app", "shop")))
	// Output: true
}
