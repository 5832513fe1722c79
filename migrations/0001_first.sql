-- What a plan allows. Rows, not code: an operator adds a plan by adding a row.
CREATE TABLE plans (
    name text PRIMARY KEY,
    -- The order in which plans are shown.
    place integer NOT NULL,
    replicas integer NOT NULL CHECK (replicas BETWEEN 1 AND 5),
    spools integer NOT NULL,
    queues_per_spool integer NOT NULL,
    message_bytes integer NOT NULL,
    request_bytes integer NOT NULL,
    stored_bytes bigint NOT NULL,
    requests_per_second integer NOT NULL,
    retention_seconds integer NOT NULL
);

INSERT INTO plans VALUES
    ('free', 1, 1, 3, 100, 262144, 1048576, 1073741824, 2000, 345600),
    ('starter', 2, 2, 10, 500, 262144, 4194304, 10737418240, 20000, 1209600),
    ('pro', 3, 3, 50, 2000, 1048576, 4194304, 107374182400, 200000, 1209600),
    ('scale', 4, 5, 500, 10000, 1048576, 4194304, 1099511627776, 1000000, 1209600);

-- Counts changes of what nodes know. Whoever changes an account, a key or a spool takes the next number in the same
-- transaction and writes it into the row; the row lock makes numbers commit in their order.
CREATE TABLE directory (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL
);
INSERT INTO directory (version) VALUES (1);

CREATE TABLE accounts (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    plan text NOT NULL REFERENCES plans (name),
    created_ms bigint NOT NULL,
    version bigint NOT NULL
);
CREATE INDEX accounts_version ON accounts (version);

CREATE TABLE people (
    id uuid PRIMARY KEY,
    email text NOT NULL,
    -- Argon2id, as a PHC string.
    password_hash text NOT NULL,
    created_ms bigint NOT NULL
);
CREATE UNIQUE INDEX people_email ON people (lower(email));

CREATE TABLE members (
    account uuid NOT NULL REFERENCES accounts (id),
    person uuid NOT NULL REFERENCES people (id),
    role text NOT NULL CHECK (role IN ('owner', 'admin', 'viewer')),
    PRIMARY KEY (account, person)
);
CREATE INDEX members_person ON members (person);

CREATE TABLE sessions (
    id uuid PRIMARY KEY,
    person uuid NOT NULL REFERENCES people (id),
    account uuid NOT NULL REFERENCES accounts (id),
    created_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    ended_ms bigint
);
CREATE INDEX sessions_ended ON sessions (ended_ms) WHERE ended_ms IS NOT NULL;

-- Each is good once. One that is used again was stolen, by either side: its session ends.
CREATE TABLE refresh_tokens (
    -- SHA-256.
    hash bytea PRIMARY KEY,
    session uuid NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    used_ms bigint
);

CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    account uuid NOT NULL REFERENCES accounts (id),
    name text NOT NULL,
    -- The first characters, to recognise it by.
    hint text NOT NULL,
    -- SHA-256 of the whole key, which is stored nowhere.
    hash bytea NOT NULL CONSTRAINT api_keys_hash UNIQUE,
    scopes text[] NOT NULL,
    -- Empty: any.
    spool text NOT NULL,
    queue_prefix text NOT NULL,
    -- Zero: never.
    expires_ms bigint NOT NULL,
    created_ms bigint NOT NULL,
    last_used_ms bigint NOT NULL DEFAULT 0,
    deleted_ms bigint,
    version bigint NOT NULL
);
CREATE INDEX api_keys_account ON api_keys (account);
CREATE INDEX api_keys_version ON api_keys (version);

CREATE TABLE spools (
    id uuid PRIMARY KEY,
    account uuid NOT NULL REFERENCES accounts (id),
    name text NOT NULL,
    num_replicas smallint NOT NULL,
    num_sync smallint NOT NULL,
    -- Receivers' tokens are made with it, on every copy.
    token_key bytea NOT NULL,
    created_ms bigint NOT NULL,
    -- Its copies and its record are there.
    placed boolean NOT NULL DEFAULT false,
    version bigint NOT NULL,
    CONSTRAINT spools_name UNIQUE (account, name),
    CONSTRAINT spools_numbers CHECK (num_sync >= 0 AND num_sync < num_replicas)
);
CREATE INDEX spools_version ON spools (version);
CREATE INDEX spools_unplaced ON spools (created_ms) WHERE NOT placed;

-- Spools that were given up before they were placed, for the nodes.
CREATE TABLE removed_spools (
    id uuid PRIMARY KEY,
    version bigint NOT NULL
);

-- Who did what.
CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms bigint NOT NULL,
    account uuid NOT NULL,
    person uuid,
    what text NOT NULL
);
CREATE INDEX audit_account ON audit (account, id);
