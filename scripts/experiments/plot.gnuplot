# A table's plot. data, picture: file names; kind: bars, lines or log; columns: what to draw over the
# first (bars: over the first two, the axis and what it names); name: of the vertical axis.
set terminal svg size 640,360 dynamic background "white"
set output picture
set datafile separator tab
set datafile missing "none"
set key outside right top autotitle columnhead
set ylabel name
set grid ytics
if (kind eq "bars") {
    set style data histogram
    set style histogram clustered gap 1
    set style fill solid 0.7
    set logscale y
    set xtics rotate by -20
    if (data[strlen(data) - 3:] eq ".tsv" && word(columns, 1) eq "3") {
        plot for [i = 1:words(columns)] data using (column(int(word(columns, i)))):xtic(strcol(1) . " " . strcol(2)[1:12])
    } else {
        plot for [i = 1:words(columns)] data using (column(int(word(columns, i)))):xtic(strcol(1)[1:24])
    }
} else {
    if (kind eq "log") { set logscale xy }
    if (kind eq "lines") { set yrange [0:*] }
    plot for [i = 1:words(columns)] data using 1:(column(int(word(columns, i)))) with linespoints
}
