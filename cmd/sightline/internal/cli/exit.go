package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes (UX.md §5.8).
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitTimeout     = 4
	exitRefused     = 5
	exitDegraded    = 6
)

// exitError is an error that chose its exit code, and may say what to do.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usagef is a mistake in the command line itself.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// report prints an error for a person and returns the process's exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var e *exitError
	if errors.As(err, &e) {
		if msg := e.Error(); msg != "" {
			fmt.Fprintf(w, "error: %s\n", msg)
		}
		if e.hint != "" {
			fmt.Fprintf(w, "  %s\n", e.hint)
		}
		return e.code
	}
	if s, ok := status.FromError(err); ok {
		return reportStatus(w, s)
	}
	fmt.Fprintf(w, "error: %s\n", err)
	if errors.Is(err, context.DeadlineExceeded) {
		return exitTimeout
	}
	return exitFailure
}

// reportStatus prints what a server refused: the message with its SL code, and
// each bad field with its rule.
func reportStatus(w io.Writer, s *status.Status) int {
	code := ""
	var fields []string
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			code = d.GetMetadata()["code"]
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				fields = append(fields, fmt.Sprintf("%s: %s", v.GetField(), v.GetDescription()))
			}
		}
	}
	if code != "" {
		code += " "
	}
	fmt.Fprintf(w, "error: %s%s\n", code, s.Message())
	for _, f := range fields {
		if !strings.Contains(s.Message(), f) {
			fmt.Fprintf(w, "  %s\n", f)
		}
	}
	switch s.Code() {
	case codes.Unavailable:
		return exitUnreachable
	case codes.DeadlineExceeded:
		return exitTimeout
	case codes.FailedPrecondition, codes.PermissionDenied:
		return exitRefused
	}
	return exitFailure
}
