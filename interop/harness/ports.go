package harness

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Ports are taken below the range from which systems hand out ephemeral ones,
// so that an outgoing connection cannot take a port between the look and the use.
const (
	firstPort = 20000
	lastPort  = 32000
)

// reserved is the offset whose port is held while a test owns the block, so that
// tests of other processes take another one.
const reserved = 99

// FreeBlock returns a base such that base+offset is free over TCP and UDP on
// loopback for every offset. With none it looks at offset 0 alone. The block
// belongs to the test until its end; offset 99 is not to be used.
func FreeBlock(t testing.TB, offsets ...int) int {
	t.Helper()
	if len(offsets) == 0 {
		offsets = []int{0}
	}
	for range 200 {
		base := firstPort + 100*rand.IntN((lastPort-firstPort)/100)
		hold, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+reserved)))
		if err != nil {
			continue
		}
		if free(base, offsets) {
			t.Cleanup(func() { hold.Close() })
			return base
		}
		hold.Close()
	}
	t.Fatalf("no block of free ports between %d and %d", firstPort, lastPort)
	return 0
}

func free(base int, offsets []int) bool {
	for _, o := range offsets {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(base+o))
		l, err := net.Listen("tcp", at)
		if err != nil {
			return false
		}
		l.Close()
		p, err := net.ListenPacket("udp", at)
		if err != nil {
			return false
		}
		p.Close()
	}
	return true
}
