// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/elffile"
)

// TestFirstPush checks the place of the probe in code of Go 1.24 to 1.27 as objdump shows it, and that other code is refused.
func TestFirstPush(t *testing.T) {
	short := []byte{0x49, 0x3b, 0x66, 0x10, 0x76, 0x5b, 0x55, 0x48, 0x89, 0xe5, 0x48}
	long := []byte{0x49, 0x3b, 0x66, 0x10, 0x0f, 0x86, 0xa4, 0x01, 0x00, 0x00, 0x55, 0x48, 0x89, 0xe5, 0x48}
	push, end, err := firstPush(Malloc, elf.EM_X86_64, short)
	require.NoError(t, err)
	assert.Equal(t, []int{6, 10}, []int{push, end})
	push, end, err = firstPush(Malloc, elf.EM_X86_64, long)
	require.NoError(t, err)
	assert.Equal(t, []int{10, 14}, []int{push, end})
	for _, code := range [][]byte{short, long} {
		for n := range len(code) - 1 {
			_, _, err := firstPush(Malloc, elf.EM_X86_64, code[:n])
			require.ErrorIs(t, err, ErrUnsafe, n)
		}
		for i := range len(code) - 1 {
			if i == 5 || len(code) == len(long) && i >= 6 && i < 10 {
				continue // the distance of the jump
			}
			changed := append([]byte{}, code...)
			changed[i] ^= 1
			_, _, err := firstPush(Malloc, elf.EM_X86_64, changed)
			require.ErrorIs(t, err, ErrUnsafe, "%x", changed)
		}
	}
	_, _, err = firstPush(Malloc, elf.EM_AARCH64, short)
	require.ErrorContains(t, err, "only the code for amd64 is known")
}

// TestCheckSpecial checks the code of Go 1.25 to 1.27 as objdump shows it, and that other code is refused.
func TestCheckSpecial(t *testing.T) {
	mark := []byte{0xc6, 0x43, 0x10, 0x04} // MOVB $0x4, 0x10(BX)
	code := func(parts ...[]byte) []byte {
		return bytes.Join(append([][]byte{{0x49, 0x3b}}, parts...), []byte{0x90})
	}
	require.NoError(t, checkSpecial(code(mark, []byte{0x48})))
	require.ErrorIs(t, checkSpecial(code(mark, mark)), ErrUnsafe)
	for n := range mark {
		require.ErrorIs(t, checkSpecial(code(mark[:n])), ErrUnsafe)
		changed := bytes.Clone(mark)
		changed[n] ^= 8
		require.ErrorIs(t, checkSpecial(code(changed)), ErrUnsafe, "%x", changed)
	}
	require.ErrorIs(t, checkSpecial(code([]byte{0xc6, 0x44, 0x10, 0x04})), ErrUnsafe, "another way to address memory")
}

// TestCheckFrees checks that each call counts, and that sweep must have three.
func TestCheckFrees(t *testing.T) {
	const callee, caller = 0x1000, 0x1100
	call := func(position int, to int32) []byte {
		return binary.LittleEndian.AppendUint32([]byte{0xe8}, uint32(to-int32(caller+position+5)))
	}
	check := func(code ...[]byte) error {
		return checkFrees(elffile.Function{Offset: caller, Code: bytes.Join(code, nil)}, elffile.Function{Offset: callee})
	}
	before, later := []byte{0x90}, []byte{0x0f, 0xe8}
	all := [][]byte{before, call(1, callee), call(6, callee), later, call(13, callee)}
	require.NoError(t, check(all...))
	require.ErrorContains(t, check(all[:4]...), "in 2 places instead of 3")
	require.ErrorContains(t, check(append(all, call(18, callee))...), "in 4 places instead of 3")
	require.ErrorIs(t, check(before, call(1, callee), call(6, callee), later, call(13, callee+1)), ErrUnsafe)
	last := bytes.Clone(all[4])
	last[0] = 0xe9 // JMP
	require.ErrorIs(t, check(before, all[1], all[2], later, last), ErrUnsafe)
	require.ErrorIs(t, check(before, all[1], all[2], later, all[4][:4]), ErrUnsafe)
}

func TestSameCode(t *testing.T) {
	file := []byte{1, 0x55, 2}
	assert.True(t, sameCode([]byte{1, 0x55, 2}, file, 1))
	assert.True(t, sameCode([]byte{1, 0xcc, 2}, file, 1), "another tracer's breakpoint")
	for _, memory := range [][]byte{{0xcc, 0x55, 2}, {1, 0x55, 0xcc}, {1, 0x90, 2}, {1, 0x55}, {}} {
		assert.False(t, sameCode(memory, file, 1), "%x", memory)
	}
}

// TestSampled checks the estimate and its error against samples drawn as the runtime draws them.
func TestSampled(t *testing.T) {
	const rate, expected, rounds = 4096, 50, 400
	random := rand.New(rand.NewPCG(1, 2))
	for _, size := range []uint64{8, 64, 1024, 4096, 20000} {
		sum, within, variance, objects := 0.0, 0, 0.0, expected*rate/size
		truth := float64(size * objects)
		for range rounds {
			samples, left := 0, random.ExpFloat64()*rate
			for range objects {
				if left -= float64(size); left < 0 {
					samples, left = samples+1, random.ExpFloat64()*rate
				}
			}
			a := Sampled(samples, size, rate)
			assert.InEpsilon(t, a.Bytes+1, a.Objects*float64(size)+1, 1e-9)
			sum += a.Bytes
			variance += a.variance
			if math.Abs(a.Bytes-truth) <= 2*a.Error() {
				within++
			}
		}
		deviation := math.Sqrt(variance / rounds / rounds)
		assert.InDelta(t, truth, sum/rounds, 4*deviation+1, size)
		assert.Greater(t, within, rounds*85/100, size) // 95 % for many samples
	}
}

// TestSampledLies checks that no claim of a process makes a number that is not one, or that outweighs everything.
func TestSampledLies(t *testing.T) {
	total := Amount{}
	for _, size := range []uint64{0, 1, 8, 1 << 20, math.MaxInt64, math.MaxUint64} {
		for _, rate := range []uint64{0, 1, 2, 512 << 10, math.MaxInt64, math.MaxUint64} {
			a := Sampled(1, size, rate)
			for _, n := range []float64{a.Bytes, a.Objects, a.Error()} {
				assert.False(t, math.IsNaN(n) || math.IsInf(n, 0) || n < 0, "%d %d: %v", size, rate, a)
			}
			assert.LessOrEqual(t, a.Bytes, 1.01*maxSize)
			assert.GreaterOrEqual(t, a.Objects, 1.0)
			total = total.Add(a)
		}
	}
	assert.Equal(t, uint64(total.Bytes), total.Weight())
	exact := Sampled(3, 1<<20, 1)
	assert.Equal(t, Amount{Samples: 3, Objects: 3, Bytes: 3 << 20}, exact)
}
