// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the files of example/ecosystem/deploy: the Dockerfile, compose.yaml and the
// Kubernetes manifests. The code of Docker and Kubernetes parses them, and their pods run as
// containers.
package deploy
