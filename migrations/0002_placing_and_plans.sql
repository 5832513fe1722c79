-- A plan's new limits are told to the nodes like any other change: its accounts take the next number.
CREATE FUNCTION tell_of_plan() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    next bigint;
BEGIN
    UPDATE directory SET version = version + 1 RETURNING version INTO next;
    UPDATE accounts SET version = next WHERE plan = NEW.name;
    RETURN NULL;
END
$$;
CREATE TRIGGER plans_told AFTER UPDATE ON plans FOR EACH ROW EXECUTE FUNCTION tell_of_plan();

-- Nodes may have been asked for copies: from here on the row is not taken back. Of rows that are there, nobody knows.
ALTER TABLE spools ADD COLUMN placing_begun boolean NOT NULL DEFAULT false;
UPDATE spools SET placing_begun = true;

-- Told for a while; a node that comes back later begins with everything that is there.
ALTER TABLE removed_spools ADD COLUMN removed_ms bigint NOT NULL DEFAULT 0;
CREATE INDEX removed_spools_ms ON removed_spools (removed_ms);

CREATE INDEX sessions_person ON sessions (person);
CREATE INDEX refresh_tokens_session ON refresh_tokens (session);
