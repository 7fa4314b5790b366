module github.com/otelctx/otelctx/internal/interop

go 1.26.0

require github.com/otelctx/otelctx v0.0.0

replace github.com/otelctx/otelctx => ../..
