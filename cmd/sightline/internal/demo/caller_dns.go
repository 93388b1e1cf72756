package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// dnsEvery is how often the DNS caller asks; it ignores the TTL of 5 s, as an
// impatient client does.
const dnsEvery = 500 * time.Millisecond

// dnsCaller is a legacy caller: it asks for SRV and A records, and connects to
// what it was told last, also when nobody answers any more.
type dnsCaller struct {
	resolver net.Resolver
	stop     context.CancelFunc
	asking   sync.WaitGroup

	mu    sync.Mutex
	known map[string]Held
	next  int
	conns map[string]*grpc.ClientConn // by address
}

func newDNSCaller(p Part) (caller, error) {
	ctx, stop := context.WithCancel(context.Background())
	c := &dnsCaller{known: map[string]Held{}, conns: map[string]*grpc.ClientConn{}, stop: stop}
	c.resolver = net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, p.DNS)
	}}
	for _, service := range p.Services {
		c.asking.Go(func() {
			for {
				c.ask(ctx, service)
				select {
				case <-ctx.Done():
					return
				case <-time.After(dnsEvery):
				}
			}
		})
	}
	return c, nil
}

// ask refreshes one service; an answer that fails or is empty changes nothing.
func (c *dnsCaller) ask(ctx context.Context, service string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	host := service + "." + namespace + ".svc." + zoneApex
	version := ""
	if texts, err := c.resolver.LookupTXT(ctx, "_sightline."+host); err == nil {
		for _, t := range texts { // the resolver joins the strings of one record
			if _, rest, ok := strings.Cut(t, "view="); ok {
				version = strings.TrimRight(rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789."))], ".")
			}
		}
	}
	_, records, err := c.resolver.LookupSRV(ctx, "grpc", "tcp", host)
	if err != nil || len(records) == 0 {
		return
	}
	var addresses []string
	for _, r := range records {
		ips, err := c.resolver.LookupHost(ctx, r.Target)
		if err != nil {
			continue // it left between the two questions
		}
		for _, ip := range ips {
			addresses = append(addresses, net.JoinHostPort(ip, fmt.Sprint(r.Port)))
		}
	}
	if len(addresses) == 0 {
		return
	}
	slices.Sort(addresses)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[service] = Held{Version: version, Addresses: addresses}
}

func (c *dnsCaller) call(ctx context.Context, service string) error {
	conn, err := c.pick(service)
	if err != nil {
		return err
	}
	return check(ctx, conn)
}

func (c *dnsCaller) pick(service string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addresses := c.known[service].Addresses
	if len(addresses) == 0 {
		return nil, errors.New("no answer for " + service + " yet")
	}
	c.next++
	address := addresses[c.next%len(addresses)]
	if conn := c.conns[address]; conn != nil {
		return conn, nil
	}
	// An impatient client: an address that comes back is tried again soon.
	patience := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, MaxDelay: 300 * time.Millisecond}, MinConnectTimeout: time.Second}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithConnectParams(patience), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		c.conns[address] = conn
	}
	return conn, err
}

func (c *dnsCaller) held(context.Context) map[string]Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]Held, len(c.known))
	for service, h := range c.known {
		out[service] = h
	}
	return out
}

func (c *dnsCaller) close() {
	c.stop()
	c.asking.Wait()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}
