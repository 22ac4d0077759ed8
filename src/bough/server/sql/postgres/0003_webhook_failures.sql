alter table server_webhook add column failing bigint;     -- microseconds since 1970: its first failure after it took something
alter table server_webhook add column switched_off bigint; -- when it had failed for too long
