// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contextattr sets context-scoped attributes ([OTEP 4931]). It is meant for libraries: it
// imports the OpenTelemetry API but no SDK. In a program in which nothing uses the attributes, it
// does nothing.
//
// Applications use package [github.com/otelctx/otelctx/scopedattr] instead. It has the same
// function, and also chooses which signals carry the attributes.
//
// [OTEP 4931]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/4931-context-scoped-attributes.md
package contextattr
