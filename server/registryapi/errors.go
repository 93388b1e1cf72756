package registryapi

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/status"
)

// retryHint is what a caller whose write met a failing disk is told to wait.
const retryHint = time.Second

// statusOf is the one mapping of what a write can end in to a gRPC status.
// prefix is the path of an item of a batch, with its dot; nil: the request is one item.
func statusOf(err error, prefix func(index int) string) error {
	if err == nil {
		return nil
	}
	var (
		item  *registry.ItemError
		bad   registry.Violations
		no    *registry.Refusal
		store *desired.Unavailable
	)
	field := ""
	if errors.As(err, &item) && prefix != nil {
		field = prefix(item.Index)
	}
	switch {
	case errors.As(err, &store):
		return ofStore(store)
	case errors.As(err, &bad):
		return invalid(bad, field)
	case errors.As(err, &no):
		return ofRefusal(no, field)
	}
	return err // the caller's own deadline or cancellation
}

// invalid names every broken field with its path in the request.
func invalid(bad registry.Violations, prefix string) error {
	return violated(placed(nil, bad, prefix))
}

// placed appends violations under their paths in the request.
func placed(all, bad registry.Violations, prefix string) registry.Violations {
	for _, v := range bad {
		v.Field = pathOf(prefix, v.Field)
		all = append(all, v)
	}
	return all
}

func violated(bad registry.Violations) error {
	b := status.New(status.InvalidField, "%s", bad.Error())
	for _, v := range bad {
		b.Field(v.Field, v.Rule, v.Detail)
	}
	return b.Err()
}

// pathOf is a field's path in the request; a row that is missing as a whole is
// named without the dot.
func pathOf(prefix, field string) string {
	if field == "" {
		return strings.TrimSuffix(prefix, ".")
	}
	return prefix + wire.Path(field)
}

func ofRefusal(no *registry.Refusal, field string) error {
	code := map[registry.Reason]status.Code{
		registry.NotFound:      status.NotFound,
		registry.AlreadyExists: status.AlreadyExists,
		registry.WrongSource:   status.WrongSource,
		registry.LabelTaken:    status.AlreadyExists,
		registry.AddressHeld:   status.AlreadyExists,
		registry.InUse:         status.StillReferenced,
		registry.Conflict:      status.RevisionConflict,
		registry.DamagedRow:    status.WrongSource, // FAILED_PRECONDITION: the row has to be put again first
	}[no.Reason]
	if no.Reason == registry.ServiceFull {
		return status.New(status.LimitExceeded, "%s: %s", no.Object, no.Detail).With("limit", "Registry.EndpointsPerService").Err()
	}
	msg := no.Error()
	if field != "" {
		msg = fmt.Sprintf("%s: %s", strings.TrimSuffix(field, "."), msg)
	}
	return status.New(code, "%s", msg).Precondition(no.Reason.String(), no.Object, no.Detail).Err()
}

func ofStore(e *desired.Unavailable) error {
	code := status.StoreUnavailable
	switch e.Kind {
	case desired.Full:
		code = status.StoreFull
	case desired.Overloaded:
		return status.New(status.LimitExceeded, "%s", e.Error()).With("limit", "Store.QueuedWrites").RetryAfter(retryHint).Err()
	}
	b := status.New(code, "%s", e.Error()).RetryAfter(retryHint)
	if e.Removed {
		b.With("removed", "true")
	}
	return b.Err()
}
