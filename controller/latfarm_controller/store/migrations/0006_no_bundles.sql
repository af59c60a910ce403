-- Nothing ever wrote records of bundles here: bundles are files in a folder of their own.

DROP TABLE bundles;
