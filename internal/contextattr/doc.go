// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contextattr stores context-scoped attributes (OTEP 4931) in contexts. It imports only the
// OpenTelemetry API, so that libraries that just set attributes link nothing else. It does not
// depend on the packages that read the attributes.
package contextattr
