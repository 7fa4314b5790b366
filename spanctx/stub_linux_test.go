package spanctx

import "github.com/otelctx/otelctx/internal/childproc"

func beAdvertiser(*childproc.Parent)   {}
func beOneProcessor(*childproc.Parent) {}
func beLockstep(*childproc.Parent)     {}
func beHammer(*childproc.Parent)       {}
