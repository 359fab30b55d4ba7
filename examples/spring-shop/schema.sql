CREATE TABLE stock (
  item  integer PRIMARY KEY,
  units integer NOT NULL,
  fence bigint  NOT NULL DEFAULT 0
);

CREATE TABLE sale (
  order_id bigint  PRIMARY KEY,
  item     integer NOT NULL REFERENCES stock,
  fence    bigint  NOT NULL
);
