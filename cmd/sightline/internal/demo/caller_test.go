package demo

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestAssignmentsAreReadInBothSpellings reads what gRPC's CSDS and Envoy's
// config dump write of one assignment.
func TestAssignmentsAreReadInBothSpellings(t *testing.T) {
	for name, text := range map[string]string{
		"gRPC": `{"clusterName": "cart.shop", "endpoints": [
			{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "127.0.0.1", "portValue": 1}}}}]},
			{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "::1", "portValue": 2}}}}]}]}`,
		"Envoy": `{"cluster_name": "cart.shop", "endpoints": [
			{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}}]},
			{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "::1", "port_value": 2}}}}]}]}`,
	} {
		var l loadAssignment
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		if l.service() != "cart" || !slices.Equal(l.addresses(), []string{"127.0.0.1:1", "[::1]:2"}) {
			t.Errorf("%s: %q %q", name, l.service(), l.addresses())
		}
	}
	for _, name := range []string{"", "cart", "cart.other", "cart.shop:9090", "sightline"} {
		if got := (loadAssignment{ClusterName: name}).service(); got != "" {
			t.Errorf("%q is read as service %q", name, got)
		}
	}
	if got := (loadAssignment{ClusterName: "cart.shop"}).addresses(); got == nil || len(got) != 0 {
		t.Errorf("an empty assignment has %v", got)
	}
}

// TestTally counts outcomes between two samples, by cause.
func TestTally(t *testing.T) {
	var c tally
	for i := range 100 {
		c.add(nil, time.Duration(i)*time.Millisecond)
	}
	c.add(status.Error(codes.Unavailable, "refused"), time.Second)
	c.add(status.Error(codes.Unavailable, "refused"), time.Second)
	c.add(errors.New("odd"), time.Second)
	s := c.take()
	if s.OK != 100 || s.Failed != 3 || s.Errors["Unavailable: refused"] != 2 || s.Errors["Unknown: odd"] != 1 || s.P99 != 99 {
		t.Errorf("got %+v", s)
	}
	if s := c.take(); s.OK != 0 || s.Failed != 0 || s.P99 != 0 {
		t.Errorf("taken twice: %+v", s)
	}
}

// TestPortsDoNotMeet gives every listener of the demo a port of its own.
func TestPortsDoNotMeet(t *testing.T) {
	l := layout{base: 18000}
	seen := map[string]bool{}
	for _, o := range []int{portXDS, portAPI, portDNS, portHTTP, portEnvoy, portAdmin} {
		seen[l.addr(o)] = true
	}
	labels := map[string]bool{}
	d := &director{layout: l, cast: shop()}
	for s := range d.cast.services {
		for i := range portsPerService {
			seen[d.address(place{s, i})] = true
			labels[d.label(place{s, i})] = true
		}
	}
	if want := len(d.cast.services) * portsPerService; len(seen) != 6+want || len(labels) != want {
		t.Errorf("%d ports, %d labels", len(seen), len(labels))
	}
}

// TestUnknownParts are refused: only the demo itself starts them.
func TestUnknownParts(t *testing.T) {
	for _, spec := range []string{"", "{", `{"Kind": "teapot"}`} {
		if err := RunPart(t.Context(), spec, nil, nil); err == nil {
			t.Errorf("%q runs", spec)
		}
	}
}
