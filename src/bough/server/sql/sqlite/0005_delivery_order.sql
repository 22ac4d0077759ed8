create index server_delivery_of on server_delivery (webhook, due);
drop index server_delivery_webhook;
