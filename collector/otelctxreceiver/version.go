// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import "github.com/otelctx/otelctx"

// Version is the version of the receiver, which is released with the library.
const Version = otelctx.Version
