// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package backends tests otelctx's profiles with the servers that users run. It builds the servers
// from their Go modules, or installs them with npm, and starts them as separate processes. It sends
// them a recording of a traced service, or profiles the service with a Collector that sends to
// them. Then it compares their answers with the recording and with the spans that the service
// exported.
//
// Only make interop WHAT=backends runs these tests: building the servers takes minutes.
package backends
