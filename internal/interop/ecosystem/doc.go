// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ecosystem tests example/ecosystem as a whole: a Collector, a traced service and otelctx
// record run together, and their files are joined. It also validates the Collector's configurations.
package ecosystem

const root = "../../.."
