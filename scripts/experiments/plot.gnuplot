# A table's plot. data, picture: file names; kind: bars, lines or log; columns: what to draw over the
# first (bars of columns from the third on: over the first two); axis, second: heads of the first
# two columns; name: what the columns are.
set terminal svg size 800,400 dynamic font "sans,11" background "white"
set output picture
set datafile separator tab
set datafile missing "none"
set key outside right top
set ylabel name . (kind eq "lines" ? "" : " (log)")
set grid ytics
if (kind eq "bars") {
    set style data histogram
    set style histogram clustered gap 1
    set style fill solid 0.7
    set logscale y
    set autoscale yfixmax
    set xtics rotate by -30
    if (word(columns, 1) eq "3" || word(columns, 1) eq "4") {
        set xlabel axis . ", " . second
        plot for [i = 1:words(columns)] data using (column(int(word(columns, i)))):xtic(strcol(1) . " " . word(strcol(2), 1)) title columnhead(int(word(columns, i)))
    } else {
        set xlabel axis
        plot for [i = 1:words(columns)] data using (column(int(word(columns, i)))):xtic(strcol(1)[1:32]) title columnhead(int(word(columns, i)))
    }
} else {
    set xlabel axis
    if (kind eq "log") { set logscale xy }
    if (kind eq "lines") { set yrange [0:*] }
    plot for [i = 1:words(columns)] data using 1:(column(int(word(columns, i)))) with linespoints title columnhead(int(word(columns, i)))
}
