package status

import (
	"slices"

	"google.golang.org/grpc/codes"
)

// Table returns every code's row, in ascending order of code. Retired codes
// stay in it, so that a number is never given a second meaning.
func Table() []Entry {
	return slices.Concat(configRows(), manifestsRows(), identitiesRows(), healthRows(), viewsRows(), dnsRows(), storeRows(), clientRows())
}

// configRows are the codes of configuration and requests.
func configRows() []Entry {
	return []Entry{
		{InvalidField, "INVALID_FIELD", codes.InvalidArgument, "a field breaks a rule",
			"a field of the request is missing, out of range or malformed",
			"correct the named field and send the request again; nothing was stored", "0.1", ""},
		{InvalidManifest, "INVALID_MANIFEST", codes.InvalidArgument, "a manifest does not parse",
			"unknown or duplicate keys, a wrong type, or a document that is not YAML",
			"correct the file at the line and column named; nothing was applied", "0.1", ""},
		{PortTaken, "PORT_TAKEN", codes.OK, "an address cannot be listened on",
			"another process holds the port, or the address is not of this host",
			"stop the other process, or choose another address with the flag named", "0.1", ""},
		{InvalidConfig, "INVALID_CONFIG", codes.OK, "the configuration is not valid",
			"a flag or a key of the configuration is missing, unknown or out of range",
			"correct the flag or key named", "0.1", ""},
		{AlreadyExists, "ALREADY_EXISTS", codes.AlreadyExists, "the object exists",
			"an object of that name is stored already",
			"update it instead, or choose another name", "0.1", ""},
		{RevisionConflict, "REVISION_CONFLICT", codes.Aborted, "the object changed meanwhile",
			"the etag sent is not the one held: somebody else wrote first",
			"read the object again, repeat the change on it and send its new etag", "0.1", ""},
		{WrongSource, "WRONG_SOURCE", codes.FailedPrecondition, "another source owns the row",
			"each row belongs to the source that wrote it (api, file:<name>, kube:<name>)",
			"change it where it comes from, or remove it there first", "0.1", ""},
		{RemovalHeld, "REMOVAL_HELD", codes.FailedPrecondition, "a mass removal is held",
			"a list lacks more than the declared share of what its source gave before",
			"send the complete list again after 10 s, or restore what is missing", "0.1", ""},
		{StillReferenced, "STILL_REFERENCED", codes.FailedPrecondition, "other rows depend on it",
			"the object is used by rows that would be left without it",
			"remove or change the rows named first", "0.1", ""},
		{InvalidPageToken, "INVALID_PAGE_TOKEN", codes.InvalidArgument, "the page token is not valid",
			"the token is not one that this server gave for this list and filter",
			"start the list again without a token", "0.1", ""},
		{InvalidRequest, "INVALID_REQUEST", codes.InvalidArgument, "the request cannot be read",
			"the messages came in an order or a form that the call does not have",
			"follow the description of the call in its .proto file", "0.1", ""},
	}
}

// manifestsRows are the codes of manifests.
func manifestsRows() []Entry {
	return []Entry{
		{ManifestTooLarge, "MANIFEST_TOO_LARGE", codes.OK, "a manifest is too large",
			"the file is larger than one file may be", "split the file", "0.1", ""},
		{ManifestBadText, "MANIFEST_BAD_TEXT", codes.OK, "a manifest is not text",
			"the file is not UTF-8, or holds a control character", "save it as UTF-8 without the character named", "0.1", ""},
		{ManifestUnknownKey, "MANIFEST_UNKNOWN_KEY", codes.OK, "an unknown key",
			"the key belongs to no field at its place", "correct the spelling or the indentation", "0.1", ""},
		{ManifestRepeatedKey, "MANIFEST_REPEATED_KEY", codes.OK, "a key is given twice",
			"the same key, or two ways of saying one thing, is in one mapping", "keep one of them", "0.1", ""},
		{ManifestBadSyntax, "MANIFEST_BAD_SYNTAX", codes.OK, "the file is not YAML",
			"the text breaks the syntax of YAML at the place named", "correct the syntax there", "0.1", ""},
		{ManifestWrongType, "MANIFEST_WRONG_TYPE", codes.OK, "a value of the wrong type",
			"the field takes another type than what is given", "give a value of the type named", "0.1", ""},
		{ManifestBadValue, "MANIFEST_BAD_VALUE", codes.OK, "a value breaks a rule",
			"the form or the rule of the field is broken", "give a value that keeps the rule named", "0.1", ""},
		{ManifestMissingKey, "MANIFEST_MISSING_KEY", codes.OK, "a key is missing",
			"a field that has no default is not given", "add the key named", "0.1", ""},
		{ManifestUnknownKind, "MANIFEST_UNKNOWN_KIND", codes.OK, "an unknown apiVersion or kind",
			"the document says neither sightline.dev/v1 nor one of its kinds", "correct apiVersion or kind", "0.1", ""},
		{ManifestNotSupported, "MANIFEST_NOT_SUPPORTED", codes.OK, "a kind of a later version",
			"this release does not have the kind", "leave it out, or upgrade", "0.1", ""},
		{ManifestRefusedKey, "MANIFEST_REFUSED_KEY", codes.OK, "a key that is not given here",
			"the field belongs elsewhere in the document, or is set by the registry", "move or remove the key", "0.1", ""},
		{ManifestRefusedYAML, "MANIFEST_REFUSED_YAML", codes.OK, "a form of YAML that is refused",
			"anchors, aliases, tags and merge keys are not read", "write the values out", "0.1", ""},
		{ManifestRepeatedThing, "MANIFEST_REPEATED_THING", codes.OK, "one object twice in a file",
			"two documents have the same kind, namespace and name", "keep one of them", "0.1", ""},
		{ManifestMoreProblems, "MANIFEST_MORE_PROBLEMS", codes.OK, "more problems than are listed",
			"only the first problems of a file are listed", "correct those and look again", "0.1", ""},
	}
}

// identitiesRows are the codes of identity and authorisation.
func identitiesRows() []Entry {
	return []Entry{
		{NoIdentity, "NO_IDENTITY", codes.Unauthenticated, "the caller has no identity",
			"the connection presented no certificate with exactly one SPIFFE ID",
			"connect over mTLS with an SVID of this trust domain", "0.1", ""},
		{ClassDenied, "CLASS_DENIED", codes.PermissionDenied, "the caller's class may not call this",
			"the authorisation table has no row that lets this class call the method",
			"use an identity of a class that may: see the table in the documents", "0.1", ""},
		{NotFound, "NOT_FOUND", codes.NotFound, "not found",
			"the object does not exist, or the caller is not allowed to see it",
			"check the name, and that your identity is allowed to see it", "0.1", ""},
		{IdentityExpired, "IDENTITY_EXPIRED", codes.Unauthenticated, "the caller's certificate has expired",
			"the certificate that the connection was opened with is past its end",
			"connect again with a current SVID", "0.1", ""},
		{AddressUnproved, "ADDRESS_UNPROVED", codes.FailedPrecondition, "the address is not proved",
			"an address is listed only once it is shown to belong to the identity that registers it",
			"let a file source or an operator assert the address", "0.1", ""},
		{NotOneself, "NOT_ONESELF", codes.PermissionDenied, "only about oneself",
			"the call speaks for another identity than the caller's",
			"use the identity of the instance itself", "0.1", ""},
		{UnsafeListener, "UNSAFE_LISTENER", codes.OK, "refused to listen without protection",
			"an address that others can reach needs an identity, a trust bundle and a policy",
			"give the flags named, or listen on a loopback address", "0.1", ""},
		{IdentityUnreadable, "IDENTITY_UNREADABLE", codes.OK, "the identity cannot be loaded",
			"the SVID, its key or the trust bundle is missing, malformed or expired",
			"put a valid SVID, key and bundle at the paths named", "0.1", ""},
	}
}

// healthRows are the codes of health and contracts.
func healthRows() []Entry {
	return []Entry{
		{InvalidContract, "INVALID_CONTRACT", codes.InvalidArgument, "the contract is not valid",
			"a number is out of range, or the runtime cannot give a signal that is required",
			"correct the field named; the last good contract stays in force", "0.1", ""},
		{NotAttributable, "NOT_ATTRIBUTABLE", codes.PermissionDenied, "a report cannot be attributed",
			"the reporter is not the instance, or the instance is not known",
			"report only about the instances registered with your own identity", "0.1", ""},
		{GuardRefused, "GUARD_REFUSED", codes.FailedPrecondition, "the guard does not allow it",
			"too few members of the service would be left serving",
			"bring members back first, or have a second person authorise it", "0.1", ""},
		{LeaseGone, "LEASE_GONE", codes.NotFound, "the lease is gone",
			"the instance was deregistered, removed, or never existed",
			"register again: a restart is a new instance with a new uid", "0.1", ""},
		{NothingHeld, "NOTHING_HELD", codes.FailedPrecondition, "nothing is held back there",
			"the quarantine or brake named holds nothing now; it may have ended by itself",
			"look at what holds changes back: GetStatus lists every damper", "0.1", ""},
	}
}

// viewsRows are the codes of views, xDS and streams.
func viewsRows() []Entry {
	return []Entry{
		{ViewsLoading, "VIEWS_LOADING", codes.Unavailable, "views are being built",
			"the server started a moment ago and answers nothing before every view is built",
			"keep what you hold and try again in a second", "0.1", ""},
		{ResumeTooOld, "RESUME_TOO_OLD", codes.OutOfRange, "the version is too old to resume from",
			"the changes since that version are not kept any more",
			"start again without a version and take the whole set", "0.1", ""},
		{LimitExceeded, "LIMIT_EXCEEDED", codes.ResourceExhausted, "over a limit",
			"the caller passed the limit named",
			"slow down or spread the load; limits are per identity and address", "0.1", ""},
		{StreamStalled, "STREAM_STALLED", codes.Aborted, "the stream made no progress",
			"the oldest response was neither read nor acknowledged in time",
			"connect again; what was sent before stays valid", "0.1", ""},
		{InvalidDiscovery, "INVALID_DISCOVERY_REQUEST", codes.InvalidArgument, "the discovery request is not valid",
			"a resource name, type or nonce breaks a rule of the protocol",
			"check the client's version and its bootstrap", "0.1", ""},
		{Stopping, "STOPPING", codes.Unavailable, "the server is stopping",
			"it was asked to stop and ends its streams",
			"keep what you hold and connect again", "0.1", ""},
		{NotRenderable, "NOT_RENDERABLE", codes.FailedPrecondition, "not available on this surface",
			"the endpoint has a form that this surface cannot carry",
			"ask Resolve or Watch for it", "0.1", ""},
		{NotOffered, "NOT_OFFERED", codes.Unimplemented, "this server does not offer the call",
			"the call belongs to a part that this release does not have, or the path names none",
			"check the method's name and the server's version", "0.1", ""},
		{Internal, "INTERNAL", codes.Internal, "an internal error",
			"a rule of the program itself was broken",
			"report it with the server's log around this time", "0.1", ""},
	}
}

// dnsRows are the codes of DNS.
func dnsRows() []Entry {
	return []Entry{
		{ZoneMissing, "ZONE_MISSING", codes.OK, "no DNS zone is configured",
			"the server answers DNS for the zones it is given, and was given none",
			"name an apex with --dns-zone, for example sightline.example", "0.1", ""},
		{ZoneInvalid, "ZONE_INVALID", codes.OK, "a DNS zone is not valid",
			"an apex must be a domain name of at most 48 bytes",
			"correct --dns-zone", "0.1", ""},
	}
}

// storeRows are the codes of the store.
func storeRows() []Entry {
	return []Entry{
		{StoreFull, "STORE_FULL", codes.ResourceExhausted, "the store is full",
			"the disk has no room left: writes are refused, views go on",
			"free space under --data; writes resume by themselves", "0.1", ""},
		{StoreUnavailable, "STORE_UNAVAILABLE", codes.Unavailable, "the store does not answer",
			"the disk fails or hangs: writes are refused, views go on",
			"try again later; a write without an answer may still be applied", "0.1", ""},
		{RowUnreadable, "ROW_UNREADABLE", codes.OK, "a stored row cannot be read",
			"the row fails its checksum or its rules; its service keeps its last good state",
			"write the object named again", "0.1", ""},
		{StoreUnopenable, "STORE_UNOPENABLE", codes.OK, "the store cannot be opened",
			"the folder of --data is missing, locked by another process, or damaged",
			"check the folder's owner and that no other server uses it", "0.1", ""},
	}
}

// clientRows are the codes of the client's side.
func clientRows() []Entry {
	return []Entry{
		{ServerUnreachable, "SERVER_UNREACHABLE", codes.OK, "the server cannot be reached",
			"nothing answers at the address, or it does not speak mTLS with this trust domain",
			"check --server, that the server runs, and the identity in the context", "0.1", ""},
		{ClientConfigAbsent, "CLIENT_CONFIG_ABSENT", codes.OK, "no context or identity is configured",
			"the command needs a server address and an SVID",
			"give --server and --identity, or start sightline dev, which writes a context", "0.1", ""},
		{WaitExpired, "WAIT_EXPIRED", codes.OK, "the wait ended before it was fulfilled",
			"some clients or members are still behind",
			"look at those that were printed, or wait longer with --timeout", "0.1", ""},
	}
}
