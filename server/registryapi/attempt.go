package registryapi

import (
	"context"
	"errors"

	grpcstatus "google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
)

// attempt is one write that a caller asks for.
type attempt struct {
	who          identity.Principal
	method       string
	target       string // what it is about, as people write it
	field        string // path of the row within the request, with its dot; empty: the request itself
	validateOnly bool
}

// privileged says whose writes are audited: those who speak for others.
func privileged(c identity.Class) bool {
	return c == identity.Operator || c == identity.SecurityAdmin || c == identity.Reconciler
}

// audited says whether the attempt leaves a record.
func (a *attempt) audited() bool { return privileged(a.who.Class()) && !a.validateOnly }

// record is the audit record of a privileged attempt.
func (s *Server) record(a attempt) *desired.Record {
	return &desired.Record{
		At: s.cfg.Now(), Actor: a.who.String(), Address: a.who.Addr.String(), Action: a.method, Target: a.target,
	}
}

// write has the Writer make changes durable, with the record of a privileged
// attempt, and turns its error into a status.
func (s *Server) write(ctx context.Context, a attempt, ms ...registry.Mutation) (desired.Result, error) {
	req := desired.Request{Mutations: ms, ValidateOnly: a.validateOnly}
	if a.audited() {
		req.Audit = s.record(a)
	}
	res, err := s.cfg.Writer.Write(ctx, req)
	return res, a.status(err)
}

// refuse answers an attempt that is refused before anything is written: the
// record of a privileged one has to be durable first (RELIABILITY.md, I15).
func (s *Server) refuse(ctx context.Context, a attempt, refusal error) error {
	if !a.audited() {
		return refusal
	}
	r := s.record(a)
	r.Reason = grpcstatus.Convert(refusal).Message()
	if err := s.cfg.Writer.Record(ctx, *r); err != nil {
		return statusOf(err, nil)
	}
	return refusal
}

// status is statusOf for the one row of the request.
func (a *attempt) status(err error) error {
	var bad registry.Violations
	if errors.As(err, &bad) {
		return invalid(bad, a.field)
	}
	return statusOf(err, nil)
}
