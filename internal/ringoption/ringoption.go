// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ringoption has the option of rings that is of use to this module's packages
// only, and so is none of package ringbuf's own.
package ringoption

import "github.com/otelctx/otelctx/internal/goruntime"

// WithRuntime returns a ringbuf.Option that replaces what is known of the Go runtime.
// Package ringbuf sets it when it is initialized.
var WithRuntime func(*goruntime.Runtime) any
