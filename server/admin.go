package server

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/identity/svid"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/admin"
	"github.com/sightlinedev/sightline/server/shard"
	"github.com/sightlinedev/sightline/server/watch"
	"github.com/sightlinedev/sightline/server/xds"
	"github.com/sightlinedev/sightline/views"
	"github.com/sightlinedev/sightline/views/store"
)

// newAdmin wires what AdminService reads. It is given the parts' own answers,
// in its own types.
func (s *Server) newAdmin() *admin.Server {
	return admin.New(admin.Config{
		Process:  admin.Process{Version: s.cfg.Version, Region: s.cfg.Region, Zone: s.cfg.Zone, Started: s.started},
		Snapshot: s.Snapshot, Policy: s.Policy, Principal: svid.PrincipalFrom,
		Read: s.writer.Read, Inspect: s.inspect, Clients: s.clients, Resources: s.resources,
		Checks: s.adminChecks, Store: s.adminStore, Shedding: s.publisher.Shedding, Alarms: s.alarms,
		ViewAt: s.viewAt, Changes: s.store.ChangesSince, Transitions: s.loggedTransitions,
		Taps: s.taps, API: s.cfg.Limits.API,
		Record: s.writer.Record, ReleaseSource: s.writer.Confirm, Holders: s.holders,
		ReleaseQuarantine: s.shards.ReleaseQuarantine, Stance: s.shards.Stance, ReleaseBrake: s.releaseBrake,
		TestContract: s.testContract, Rollouts: s.report.rollouts, DialBack: s.dialBack,
	})
}

func (s *Server) dialBack(uid registry.UID) (admin.DialBack, bool) {
	d, ok := s.reports.DialBack(uid)
	return admin.DialBack(d), ok
}

func (s *Server) releaseBrake(context.Context) (bool, error) { return s.shards.ReleaseBrake(), nil }

func (s *Server) inspect(ctx context.Context, n registry.Name) (admin.Inspection, bool, error) {
	var i shard.Inspection
	i, ok, err := s.shards.Inspect(ctx, n)
	return admin.Inspection{Instances: i.Instances, Until: i.Until, Why: i.Why, Third: i.Third, Rollout: adminRollout(i.Rollout)}, ok, err
}

// holders lists the xDS streams that know a service; a Watch stream has no names.
func (s *Server) holders(n registry.Name) (streams []uint64) {
	for _, id := range s.xds.Holders(n) {
		streams = append(streams, uint64(id))
	}
	return streams
}

// clients lists the streams of both protocols. A Watch stream has no number of
// its own: its start stands in, above all numbers of xDS streams.
func (s *Server) clients() []admin.Client {
	var all []admin.Client
	for _, c := range s.xds.Clients() {
		all = append(all, adminClient(c))
	}
	for _, w := range s.watch.Watchers() {
		all = append(all, admin.Client{
			Stream: watchStream(w), Node: w.NodeID, Who: w.Who, Address: w.Who.Addr.String(), Kind: w.UserAgent,
			Protocol: admin.Watch, Since: w.Since,
			Types: []admin.ClientType{{Type: admin.Views, Wildcard: w.All, Names: w.Services, Sent: w.Sent, Acked: w.Applied}},
		})
	}
	return all
}

func adminClient(c xds.ClientState) admin.Client {
	protocol := admin.StateOfTheWorld
	if c.Protocol == "delta" {
		protocol = admin.Delta
	}
	out := admin.Client{Stream: uint64(c.ID), Node: c.Node, Who: c.Principal, Address: c.Principal.Addr.String(),
		Kind: c.UserAgent, Protocol: protocol, Since: c.Since}
	for _, t := range c.Types {
		kind, ok := resourceType(t.Type)
		if !ok {
			continue
		}
		out.Types = append(out.Types, admin.ClientType{
			Type: kind, Wildcard: t.Wildcard, Names: t.Names, Held: t.Held, Unacked: t.Unacked, Waiting: t.Urgent + t.Waiting,
			Acked: t.Acked, Nacked: len(t.Rejected) > 0, NackText: t.LastError,
		})
	}
	return out
}

// resourceType reads the engine's name of a type.
func resourceType(name string) (admin.ResourceType, bool) {
	switch name {
	case "LDS":
		return admin.Listeners, true
	case "RDS":
		return admin.Routes, true
	case "CDS":
		return admin.Clusters, true
	case "EDS":
		return admin.Endpoints, true
	}
	return 0, false
}

// resources lists the names on an xDS stream, with the client's words where it
// refused one. A Watch stream has a filter and no names of its own.
func (s *Server) resources(stream uint64) ([]admin.Resource, bool) {
	if stream > math.MaxUint32 {
		return nil, slices.ContainsFunc(s.watch.Watchers(), func(w watch.Watcher) bool { return watchStream(w) == stream })
	}
	names, ok := s.xds.Resources(uint32(stream))
	if !ok {
		return nil, false
	}
	refusals := make(map[string]string)
	for _, c := range s.xds.Clients() {
		if uint64(c.ID) != stream {
			continue
		}
		for _, t := range c.Types {
			refusals[t.Type] = t.LastError
		}
	}
	list := make([]admin.Resource, 0, len(names))
	for _, n := range names {
		kind, ok := resourceType(n.Type)
		if !ok {
			continue
		}
		r := admin.Resource{Type: kind, Name: n.Name, Service: n.Service, Held: n.Held, Pending: n.Waiting, Isolated: n.Rejected}
		if n.Rejected {
			r.NackText = refusals[n.Type]
		}
		list = append(list, r)
	}
	return list, true
}

// watchStream is the number of a Watch stream.
func watchStream(w watch.Watcher) uint64 { return uint64(w.Since.UnixNano()) }

func (s *Server) adminChecks() []admin.Check {
	checks, _ := s.checks.list()
	out := make([]admin.Check, 0, len(checks))
	for _, c := range checks {
		out = append(out, admin.Check{Name: c.name, Why: c.why})
	}
	return out
}

func (s *Server) adminStore() admin.Store {
	st := s.store.Status()
	if st.State == store.Writable {
		return admin.Store{}
	}
	return admin.Store{Frozen: true, Reason: (&store.Unavailable{Status: st}).Error(), Since: time.Unix(0, s.storeSince.Load())}
}

// alarms are what needs a person now.
func (s *Server) alarms() []string {
	var all []string
	if err := s.refusal(); err != nil {
		all = append(all, "desired state is read-only: "+err.Error())
	}
	if _, end := s.source.Validity(); time.Until(end) < time.Hour {
		all = append(all, "the server's own SVID ends at "+end.UTC().Format(time.RFC3339))
	}
	return append(all, s.report.unreadable()...)
}

func (s *Server) viewAt(ctx context.Context, n registry.Name, v views.Version) (*views.View, bool, error) {
	found, ok, err := s.store.ViewAt(ctx, n, v)
	return found.View, ok, err
}

// loggedTransitions reads the log, newest first.
func (s *Server) loggedTransitions(ctx context.Context, q admin.TransitionQuery) ([]admin.Transition, error) {
	found, _, err := s.store.Transitions(ctx, store.TransitionFilter{Name: q.Name, UID: q.UID, Since: q.Since, Until: q.Until, Limit: q.Limit})
	out := make([]admin.Transition, 0, len(found))
	for _, t := range found {
		out = append(out, admin.Transition{At: t.At, Name: t.Name, UID: t.UID, From: t.From, To: t.To, Member: t.Member,
			Rule: t.Rule, Detail: t.Detail, Removal: t.Removal, Version: t.Version})
	}
	return out, err
}
