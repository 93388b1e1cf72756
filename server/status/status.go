package status

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo domain of every status.
const Domain = "sightline.dev"

// metadataCode is the key of the SL code in ErrorInfo.metadata.
const metadataCode = "code"

// Builder gathers the parts of one status. It is not safe for concurrent use.
type Builder struct {
	entry         Entry
	message       string
	metadata      map[string]string
	fields        []*errdetails.BadRequest_FieldViolation
	preconditions []*errdetails.PreconditionFailure_Violation
	retryAfter    time.Duration
}

// New starts a status of the given code. The text says what happened and why;
// what to do comes from the code's row. A code without a row, or one that is
// never sent over gRPC, becomes Internal: the row is what makes it answerable.
func New(code Code, format string, args ...any) *Builder {
	e, ok := Lookup(code)
	if !ok || e.GRPC == codes.OK {
		e, _ = Lookup(Internal)
	}
	return &Builder{entry: e, message: fmt.Sprintf(format, args...),
		metadata: map[string]string{metadataCode: e.Code.String()}}
}

// With adds one dynamic value to the ErrorInfo's metadata.
func (b *Builder) With(key, value string) *Builder {
	b.metadata[key] = value
	return b
}

// Field adds a BadRequest violation: the field's path, the rule it breaks, and
// what was wrong with the value.
func (b *Builder) Field(field, rule, detail string) *Builder {
	b.fields = append(b.fields, &errdetails.BadRequest_FieldViolation{
		Field: field, Description: detail, Reason: reasonOf(rule),
	})
	return b
}

// Precondition adds a PreconditionFailure violation: its type, the subject it
// concerns, and the numbers.
func (b *Builder) Precondition(kind, subject, detail string) *Builder {
	b.preconditions = append(b.preconditions, &errdetails.PreconditionFailure_Violation{
		Type: kind, Subject: subject, Description: detail,
	})
	return b
}

// RetryAfter adds a RetryInfo. Stock xDS clients ignore it; our own honours it.
func (b *Builder) RetryAfter(d time.Duration) *Builder {
	b.retryAfter = d
	return b
}

// Err returns the status as an error that keeps its details over an RPC.
func (b *Builder) Err() error {
	text := strings.TrimRight(b.message, ".") + "; " + b.entry.Fix + " [" + b.entry.Code.String() + "]"
	st := &spb.Status{Code: int32(b.entry.GRPC), Message: text} //nolint:gosec // a gRPC code
	details := []proto.Message{&errdetails.ErrorInfo{Reason: b.entry.Reason, Domain: Domain, Metadata: b.metadata}}
	if len(b.fields) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: b.fields})
	}
	if len(b.preconditions) > 0 {
		details = append(details, &errdetails.PreconditionFailure{Violations: b.preconditions})
	}
	if b.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(b.retryAfter)})
	}
	for _, d := range details {
		// Deterministic: one answer is always the same bytes (RELIABILITY.md, I14).
		packed := new(anypb.Any)
		if err := anypb.MarshalFrom(packed, d, proto.MarshalOptions{Deterministic: true}); err != nil {
			st.Details = nil // details that do not marshal (text that is not UTF-8) are left out
			break
		}
		st.Details = append(st.Details, packed)
	}
	return status.ErrorProto(st)
}

// Errorf is New(code, format, args...).Err().
func Errorf(code Code, format string, args ...any) error {
	return New(code, format, args...).Err()
}

// Field is the status of one field that breaks one rule.
func Field(code Code, field, rule, detail string) error {
	return New(code, "%s: %s (rule: %s)", field, detail, rule).
		With("field", field).With("rule", rule).Field(field, rule, detail).Err()
}

// Precondition is the status of one precondition that does not hold.
func Precondition(code Code, kind, subject, detail string) error {
	return New(code, "%s: %s", subject, detail).Precondition(kind, subject, detail).Err()
}

// Limit is the status of a limit that was passed: its name, as limits.Limits
// documents it, and its value with the unit.
func Limit(name, value string) error {
	return New(LimitExceeded, "over the limit %s of %s", name, value).
		With("limit", name).With("value", value).Err()
}

// Hidden is the one answer about an object that does not exist or that the
// caller may not see: the same for both (RELIABILITY.md, I14). The kind is a
// word of DESIGN.md §5, the name what the caller asked for.
func Hidden(kind, name string) error {
	return New(NotFound, "%s %q: not found", kind, name).With("kind", kind).With("name", name).Err()
}

// CodeOf reads the SL code back from an error that crossed an RPC, or was
// wrapped on the way; ok is false when it carries none.
func CodeOf(err error) (Code, bool) {
	var st interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &st) {
		return 0, false
	}
	for _, d := range st.GRPCStatus().Details() {
		if ei, ok := d.(*errdetails.ErrorInfo); ok && ei.GetDomain() == Domain {
			c, err := ParseCode(ei.GetMetadata()[metadataCode])
			return c, err == nil
		}
	}
	return 0, false
}

// reasonOf turns the name of a rule into the UPPER_SNAKE that a violation's
// reason must have.
func reasonOf(rule string) string {
	var b strings.Builder
	for _, r := range strings.ToUpper(rule) {
		switch {
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0:
			b.WriteByte('_')
		}
		if b.Len() >= 63 {
			break
		}
	}
	return strings.TrimRight(b.String(), "_")
}
