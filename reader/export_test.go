// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

// TLSModels returns the TLS access models of the definitions that [Process.ThreadContexts] has used.
func (p *Process) TLSModels() (models []string) {
	for _, v := range p.threads.variables {
		models = append(models, string(v.Model))
	}
	return models
}
