CREATE MATERIALIZED VIEW slow AS
SELECT page, count(*) AS views FROM clicks WHERE ms > 200 GROUP BY page
